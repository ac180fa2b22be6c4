"""Fuzzing of every border where text from outside comes in; docs/testing.md says how to run it.

A target takes bytes: a stream of events, a log, a task, options, a file of published rows, changes to a ledger, a patch. The
harness makes inputs by mutating the files in `corpus/TARGET/`, with a fixed seed, so that a run can be repeated. Whatever is
found goes into the corpus, and stays there: the files of the corpus are tried as they are before anything is mutated.

Standard library only. Coverage guidance was left out: these parsers are short, and the mutations know what they read (numbers,
lines, JSON), which found more in a minute than random bytes in an hour.
"""
