"""Alias of `rltok_rl.experiments.studies.soak`."""

from rltok_rl.experiments.studies.soak import main

if __name__ == "__main__":
    main()
