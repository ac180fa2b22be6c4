"""The web page: experiments, runs, machines, trends, published numbers and baselines of a ledger, as `stackmark web` serves them.

Pages are made on the server from the same markup as the report (show/report/markup.py), so text from a ledger is escaped by
type and the charts are the report's own. A template language and a library of charts would be second ways to do either. Nothing
is measured or started from here.

server.py listens and ends, guard.py decides who may see and do what, app.py has the routes, live.py follows what is running,
pages/ has one chapter for each kind of page.
"""
