"""The server: people send text, somebody chooses the protection, the server trains.

settings        where things lie and how much of them is accepted
storage         the tables, and the two kinds of transaction; `migrations` makes the schema
lease           at most one server has a database; who had it before cannot write
identity        accounts, roles, tokens, sessions of the pages; the audit log
records         text: appended in groups, never lost or doubled, deleted for good
tally           what is counted over a dataset, kept up with every record
unpacking       a process that reads uploaded files
datasets        what records belong to, and the lists of entities to protect
budget          what all runs on a dataset may spend together, and where it is reserved
run_requests    what a caller asks for, as the settings of a run; nothing in it names a file
plans           the dry run
jobs            a queue, and a child process for each run, detection, attack
remote_jobs     jobs that workers on other machines do; `lost_releases` when one is gone
predictions     questions to models: a queue and a process (`predictor`) of their own
models          what came out: predictions, downloads, certificates
health          whether all of it works
services        all of these together; knows nothing of HTTP
connections     how many there are, and how long a request may take to arrive
api, pages      the same over HTTP, for programs and for people
client, worker  the other side: whoever sends and asks, and whoever does the work
"""

from typing import Any

Json = dict[str, Any]
"""An object of JSON, as the API answers with."""
