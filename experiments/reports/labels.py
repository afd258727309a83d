"""Labels of systems and estimators in tables and figures of results."""

ESTIMATOR_LABELS = {
    "raw": "log-likelihood alone",
    "batch": "log-likelihood, batch mean",
    "early": "early exit",
    "paper": "early exit, batch mean: the paper's",
    "leave_one_out": "early exit, mean of the other rows",
    "entropy_relative": "early exit's entropy instead of its likelihood, mean of the other rows",
    "z_score": "early exit, normalised",
    "running_mean": "early exit, mean of earlier batches",
    "regression": "early exit, regression on what the early exit knows of the text",
    "critic_td": "early exit, critic, lambda 0.95",
    "critic": "early exit, critic, lambda 1",
    "group_mean_2": "two rows per text, compared with each other",
    "group_mean_4": "four rows per text",
    "group_mean_8": "eight rows per text",
    "local_flips": "local counterfactuals: 3 flips per 16 bytes",
    "local_flips_far": "local counterfactuals: 3 flips per 32 bytes",
}
"""Estimators of the policy gradient, by the current form of their names in `estimators.json`."""
SYSTEM_LABELS = {
    "learned": "learned, local flips",
    "paper": "paper: return, batch mean, γ 0.99",
    "no_early_exit": "paper, no early exit",
    "uniform": "uniform",
    "random": "random",
}
"""Systems of the study on languages, by their names in `learn.json`, in the order of the legend."""
