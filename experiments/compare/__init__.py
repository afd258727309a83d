"""Comparison of systems at equal total FLOPs: training, judging and the page of results."""
