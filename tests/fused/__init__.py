"""Tests of fused operations."""
