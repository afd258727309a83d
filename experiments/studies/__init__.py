"""Questions with answers: each module measures something, and writes a table, a figure and the command."""
