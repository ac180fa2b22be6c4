"""The Python API; the commands use the same functions and nothing below them.

    import stackmark as sm

    result = sm.run("train/resnet50", batch=64, runs=3)
    verdict = sm.compare("train/resnet50", arms=["host", "container,shm=1g"], margin=0.01)
    sm.load("x-01m7").verdict(margin=0.02).report("r.html")

A function either returns a result or raises a StackmarkError with `message` and `hint`. A run that failed is a result too: it
is stored, `ok` is false, and `raise_for_failure` turns it into an error.

Each chapter imports what its subject needs and no more, so that a command loads one or two of them: a list of runs comes
without the engine, and `--help` without the ledger.
"""
