"""`hanse-agent doctor`: is this machine fit to be a node, and if not, what stands in the way and what helps?

`examine` makes all checks, from DNS to the datasets, and returns findings. Each fault that it knows is produced for
real in a test.
"""

from hanse_agent.doctor.examination import Subject, examine, subject
from hanse_agent.doctor.findings import GUIDE, TITLES, Finding, State, text

__all__ = ["GUIDE", "TITLES", "Finding", "State", "Subject", "examine", "subject", "text"]
