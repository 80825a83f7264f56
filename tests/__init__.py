"""Tests of strata."""
