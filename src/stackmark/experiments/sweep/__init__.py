"""`cluster sweep`: the same run on every GPU of every node; which one is slow?"""
