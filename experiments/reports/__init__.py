"""Pages, tables and figures from run folders: a run's report, comparisons and the leaderboard."""
