"""What the child process does at the artifact store: the only part that packs, sends and extracts."""

from relay_agent.artifacts.jobs import Attach, ListStored, Pull, Put

JOBS = Put | Attach | ListStored | Pull
WORK = {Put: "send.put", Attach: "attach.attach", ListStored: "fetch.offers", Pull: "fetch.pull"}
