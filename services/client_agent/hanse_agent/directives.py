"""What the coordinator tells a node over the session, and who follows it."""

from __future__ import annotations

from hanse.errors import HanseError
from hanse.logs import logger
from hanse.v1 import node_pb2
from hanse_agent.offers import Offers
from hanse_agent.work import Workbench

__all__ = ["Directives"]


class Directives:
    """Gives each directive to the offers or to the work that it is about."""

    def __init__(self, node: str, offers: Offers, bench: Workbench) -> None:
        self._offers = offers
        self._bench = bench
        self._log = logger(node=node)

    def follow(self, directive: node_pb2.Directive) -> None:
        """Do what a directive says. Whatever is wrong with it is logged, and ends nothing."""
        which = directive.WhichOneof("directive")
        try:
            match which:
                case "offer":
                    self._offers.take(directive.offer.job)
                case "assign":
                    self._bench.assign(directive.assign)
                case "withdraw":
                    self._bench.withdraw(directive.withdraw)
                case "receipt":
                    self._bench.receipt(directive.receipt)
                case "job_ended":
                    self._offers.end(directive.job_ended.job)
                    self._bench.end_job(directive.job_ended.job)
                case "drain":
                    self._log.info("the coordinator is about to go away", reason=directive.drain.reason.sentence)
                case _:
                    self._log.warning("directive not understood", directive=which)
        except HanseError as error:  # an identifier that no coordinator of ours would send
            self._log.warning("directive not followed", directive=which, reason=str(error))
        except Exception as error:  # noqa: BLE001 - one directive must not end the session for all others
            self._log.exception("directive not followed", directive=which, error=repr(error))
