"""The site's own side: certificate, datasets, policy."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta

from hanse.errors import HanseError
from hanse_agent.catalogue import Catalogue
from hanse_agent.doctor.findings import Finding, failed, failure, ok, skipped, warning
from hanse_agent.folder import StateFolder
from hanse_agent.identity import PAIR, NodeIdentity
from hanse_agent.pool import WorkerPool
from hanse_agent.registry import installed_methods
from hanse_agent.settings import AgentConfig, Policy


def examine_certificate(folder: StateFolder, identity: NodeIdentity | None, now: datetime | None = None) -> Finding:
    """Whether the node's certificate is good, for how long, and whether its key is kept from others."""
    if identity is None:
        return skipped("certificate", "this node has not joined yet: hanse-agent join")
    now = now or datetime.now(UTC)
    try:
        identity.require_current(now)
    except HanseError as error:
        return failure("certificate", error, "It renews itself only while the agent runs and reaches the coordinator.")
    mode = stat.S_IMODE((folder.identity / PAIR).stat().st_mode)
    if mode & 0o077:
        return failed(
            "certificate",
            f"Other users of this machine may read the node's key ({folder.identity / PAIR}, mode {mode:o}).",
            cause="Whoever holds the key can speak as this node.",
            remedy=f"chmod 600 {folder.identity / PAIR}; if somebody read it, have the node revoked and invited again.",
        )
    left = identity.peer.not_after - now
    until = f"{identity.peer.not_after:%Y-%m-%d %H:%M} UTC"
    facts = {"node": identity.node, "until": identity.peer.not_after.isoformat()}
    if left < timedelta(days=1) and not folder.in_use():
        return warning(
            "certificate",
            f"The certificate of {identity.node} runs out at {until}, and the agent is not running.",
            cause="It is renewed by the running agent after two thirds of its life.",
            remedy="Start the agent before then; afterwards the operator has to run: "
            f"hanse node invite {identity.node} --again",
            **facts,
        )
    return ok("certificate", f"{identity.node}, good until {until}", **facts)


async def examine_datasets(config: AgentConfig) -> Finding:
    """What a worker of this node reads of each dataset: rows, columns, target. Records stay where they are."""
    pool = WorkerPool(config.worker)
    catalogue = Catalogue(config, pool)
    try:
        await catalogue.refresh()
    except HanseError as error:
        return failure("datasets", error, "A dataset's block in agent.yaml does not describe what is there.")
    finally:
        await pool.close()
    if catalogue.unavailable:
        name, reason = next(iter(sorted(catalogue.unavailable.items())))
        return failed(
            "datasets",
            f"{name}: {reason.sentence}",
            cause="The agent's worker cannot read the dataset as agent.yaml describes it.",
            remedy=reason.remedy or f"Correct datasets.{name}, or the file.",
            code=reason.code,
        )
    offers = catalogue.offers()
    small = [offer for offer in offers if offer.rows < config.policy.minimum_rows]
    said = "; ".join(
        f"{offer.name}: {offer.rows:,} rows, {len(offer.columns)} columns"
        + (f", target {offer.target}" if offer.target else "")
        for offer in offers
    )
    facts = {
        offer.name: {
            "rows": offer.rows,
            "target": offer.target,
            "columns": [[column.name, column.dtype] for column in offer.columns],
        }
        for offer in offers
    }
    if small:
        return failed(
            "datasets",
            f"{small[0].name} has {small[0].rows:,} rows; policy.minimum_rows asks for {config.policy.minimum_rows:,}.",
            cause="The site's own policy keeps a dataset so small out of every job.",
            remedy="Add records, or lower policy.minimum_rows.",
            **facts,
        )
    return ok("datasets", said, **facts)


def examine_policy(policy: Policy) -> Finding:
    """What the site allows, in one line, and whether it allows anything that can run."""
    here = installed_methods()
    missing = sorted(set(policy.methods) - set(here))
    said = (
        f"methods {', '.join(policy.methods)}; at least {policy.minimum_rows} rows; at most "
        f"{policy.largest_payload / 1e6:g} MB leave at once; jobs approved {policy.approve.replace('_', ' ')}"
    )
    facts = policy.model_dump(mode="json")
    for key in ("secure_aggregation", "privacy_budget"):
        if getattr(policy, key) not in (None, "not_required"):
            return warning(
                "policy",
                f"policy.{key} is asked for, so that every job is refused.",
                cause="Hanse cannot grant it yet.",
                remedy=f"Take policy.{key} away, or wait for the release that has it.",
                **facts,
            )
    if set(missing) == set(policy.methods):
        return failed(
            "policy",
            f"No method that the policy allows is installed here ({', '.join(missing)}).",
            cause="Code never comes over the wire: a site runs what it has installed.",
            remedy=f"Install the package that holds the method; installed now: {', '.join(here) or 'none'}.",
            **facts,
        )
    if missing:
        return warning(
            "policy",
            f"{', '.join(missing)} is allowed but not installed; {said}",
            cause="Code never comes over the wire: a site runs what it has installed.",
            remedy="Install the package that holds it, or take it out of policy.methods.",
            **facts,
        )
    return ok("policy", said, **facts)
