"""Demo: train boundary policies on this machine, in a few minutes, and see what they learned.

    make demo
    python -m rltok_rl.experiments.demo --seconds 200 --out runs/mine

Each of the two parts trains two models with the same initial weights on the same bytes: one learns where tokens end,
one spaces them evenly. The first part is a language with a known answer, the second English. Ctrl-C saves; the same
command resumes. If the folder has a finished demo, the next one gets a folder of its own. The exit status is 0 if the
policy learned.
"""
