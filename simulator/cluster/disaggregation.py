"""Prefill/decode disaggregation: one pool computes prompts, another one goes on from their KV.

DistServe (Zhong et al., OSDI 2024) and Splitwise (Patel et al., ISCA 2024); states and names as in vLLM's KV
connectors. A request is served by a prefill replica up to its first token, which is its answer's first. Its
blocks stay there, parked, until they have been sent. A decode replica queues it meanwhile, gives it blocks
when it has room (only then is the transfer decided), and lets it run when they have come.
Freed at abort: a client that leaves, or a replica that dies, ends a transfer at once, and both sides free
the blocks at their next step boundary. What nobody has fetched `lease` seconds after its first token is freed
in any case, and the request is aborted. A request whose prefill replica dies before its blocks are sent, or
whose decode replica dies after that, starts over; one that has lost only its decode replica is sent to
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import simpy

from simulator.cluster.fleet import DIED, MakeMember, Outage, Wait
from simulator.cluster.leases import Leases
from simulator.cluster.members import Member
from simulator.cluster.pool import Passage, Pool, first_token_of, half_of, let_go
from simulator.cluster.wires import Transfer, Wires
from simulator.engine.clock import until
from simulator.engine.pooled import PrefillReplica
from simulator.metrics.request_log import RequestLog
from simulator.request import Request, Sequence

EXPIRED = "lease expired"


class Disaggregated:
    """Take requests in, and follow each through a prefill replica, a link and a decode replica."""

    def __init__(
        self,
        env: simpy.Environment,
        log: RequestLog,
        pools: tuple[Pool, Pool],
        make_member: MakeMember,
        counts: tuple[int, int],
        wires: Wires,
        block_bytes: int,
        *,
        lease: float,
        early: bool = True,
        signal_delay: float = 0.0,
        retry: bool = True,
        outages: Iterable[Outage] = (),
    ) -> None:
        self.env = env
        self.log = log
        self.on_done: Callable[[int], None] | None = None
        self.on_step: Callable[[], None] | None = None
        self.prefill, self.decode = pools
        self.members: list[Member] = []
        self.num_retried = 0
        self.leases = Leases(env, lease, lambda passage: self._end(passage, EXPIRED))
        self._make = make_member
        self._pools: list[Pool] = [self.prefill] * counts[0] + [self.decode] * counts[1]  # of each member
        self._wires = wires
        self._block_bytes = block_bytes
        self._retry = retry
        self._early = early  # the first token is the prefill replica's
        for i in range(sum(counts)):
            self._open(i)
        for outage in outages:
            env.process(self._fail(outage))
        if signal_delay:
            env.process(self._publish(signal_delay))

    # What clients ask for.

    def receive(self, index: int, request: Request) -> Passage | None:
        """Take in a request that arrives now; None if no pair of replicas could ever serve it."""
        passage = Passage(index, request)
        for pool, asked in ((self.prefill, first_token_of(request)), (self.decode, request)):
            reasons = [pool.why_not(member, asked) for member in pool.members]
            if all(reasons):
                self.log.rejected(index, self.env.now, str(reasons[0]))
                return None
        return passage if self._to_prefill(passage) else None

    def give_up(self, taken: object, reason: str) -> None:
        """Note that a request's client has gone."""
        assert isinstance(taken, Passage), "it came from receive"
        if not taken.gone:
            self._end(taken, reason)

    # A request's way.

    def _to_prefill(self, passage: Passage) -> bool:
        """Send a request to a prefill replica, or hold it back; False if it is turned away there."""
        asked = first_token_of(passage.request)
        member = self.prefill.choose(passage.request, asked, self.env.now)
        if member is None:
            self.prefill.hold(passage)
            return True
        self.prefill.enter(member, passage)
        passage.sent_at = self.env.now
        passage.seq = member.replica.receive(passage.index, asked)
        return self._entered(self.prefill, member, passage)

    def _handed_over(self, member: Member, seq: Sequence) -> bool:
        """Say whether a sequence with its first token goes on in the decode pool, and send it there."""
        passage = member.tickets[seq.index]
        assert isinstance(passage, Passage), "all tickets here are"
        request = passage.request
        limit = min(request.max_tokens, member.replica.scheduler.max_model_len - request.num_prompt)
        if limit <= 1 or request.num_output == 1:
            return False
        self.prefill.leave(member, passage)
        passage.first, passage.parked, passage.prefilled_at = (member, seq), seq, self.env.now
        self.leases.begin(passage)
        if not self._to_decode(passage):
            self._tell(passage.index)
        return True

    def _to_decode(self, passage: Passage) -> bool:
        """Send a request to a decode replica, or hold it back; False if it is turned away there."""
        member = self.decode.choose(passage.request, passage.request, self.env.now)
        if member is None:
            self.decode.hold(passage)
            return True
        assert passage.parked is not None, "its blocks wait for it"
        self.decode.enter(member, passage)
        passage.seq = half_of(member).receive_parked(
            passage.index, passage.request, passage.parked, self._early
        )
        return self._entered(self.decode, member, passage)

    def _pull(self, member: Member, seq: Sequence, num_blocks: int, now: float) -> None:
        """Send a sequence's blocks to the decode replica that has made room for them."""
        passage = member.tickets[seq.index]
        assert isinstance(passage, Passage), "all tickets here are"
        assert passage.first is not None, "it has its first token"

        def then(moment: float) -> None:
            passage.transfer = None
            let_go(passage)
            half_of(member).arrived(seq, moment)

        began = max(self.log.scheduled_at[passage.index], passage.sent_at)
        computed = began, passage.prefilled_at
        num_bytes = num_blocks * self._block_bytes
        ends = passage.first[0].index, member.index
        passage.transfer = Transfer(passage.index, *ends, num_bytes, now, then, computed)
        self._wires.submit(passage.transfer)

    def _not_needed(self, member: Member, seq: Sequence) -> None:
        """Free what nobody fetches: the decode replica had it all, or the request is over there."""
        passage = member.tickets.get(seq.index)
        if isinstance(passage, Passage) and passage.seq is seq and passage.parked is not None:
            parked = passage.parked
            self.env.process(self._at(member.replica.now, lambda: let_go(passage, parked)))

    def _entered(self, pool: Pool, member: Member, passage: Passage) -> bool:
        """Say whether a request is, or was, in a replica's hands; False if that one could never serve it."""
        if passage.seq is None and not passage.gone:
            pool.leave(member, passage)
            self._over(passage)
            return False
        return True

    # How it ends.

    def _done(self, pool: Pool, member: Member, index: int) -> None:
        """A request on a replica is over, one way or another."""
        passage = member.tickets.get(index)
        if isinstance(passage, Passage):
            pool.leave(member, passage)
            self._over(passage)
            self._tell(index)

    def _over(self, passage: Passage) -> None:
        passage.gone = True
        self._drop_copy(passage)

    def _drop_copy(self, passage: Passage) -> None:
        """Free what is parked of a request, and stop sending it."""
        if passage.transfer is not None:
            self._wires.call_off(passage.transfer)
            passage.transfer = None
        let_go(passage)

    def _end(self, passage: Passage, reason: str) -> None:
        """Abort a request, wherever it is."""
        self._drop_copy(passage)
        if passage.member is not None and passage.seq is not None:
            passage.member.replica.give_up(passage.seq, reason)  # which tells `_done`
            return
        for pool in (self.prefill, self.decode):
            pool.forget(passage)
        passage.gone = True
        self.log.aborted(passage.index, self.env.now, reason)
        self._tell(passage.index)

    def _tell(self, index: int) -> None:
        if self.on_done is not None:
            self.on_done(index)

    def _report(self) -> None:
        if self.on_step is not None:
            self.on_step()

    # Replicas that come and go.

    def _open(self, like: int) -> None:
        """Start a replica like another one, which takes requests at once, those that wait first."""
        index = len(self.members)
        pool = self._pools[like]
        if index >= len(self._pools):
            self._pools.append(pool)
        member = self._make(index, like, self.env.now)
        self.members.append(member)
        self._connect(pool, member)
        pool.add(member)
        send = self._to_prefill if pool is self.prefill else self._to_decode
        for passage in pool.release():
            if not send(passage):
                self._tell(passage.index)

    def _connect(self, pool: Pool, member: Member) -> None:
        replica = member.replica
        replica.on_done = lambda row: self._done(pool, member, row)
        replica.on_step = self._report
        if isinstance(replica, PrefillReplica):
            replica.hands_over = lambda seq: self._handed_over(member, seq)
            replica.gives_first = self._early
        else:
            half_of(member).pull = lambda seq, n, now: self._pull(member, seq, n, now)
            replica.scheduler.on_claims_back = lambda seq: self._not_needed(member, seq)

    def _fail(self, outage: Outage) -> Wait:
        yield from until(self.env, outage.at)
        member = self.members[outage.replica]
        if member.state == "serving":
            kill = self._kill_prefill if self._pools[outage.replica] is self.prefill else self._kill_decode
            kill(member)
        if outage.back is not None:
            yield from until(self.env, outage.back)
            self._open(outage.replica)

    def _kill_prefill(self, member: Member) -> None:
        """Its prompts, and what it had not sent yet, are computed again elsewhere."""
        lost = self.prefill.strike(member, self.env.now)
        for passage in self.decode.passages():
            if passage.parked is None or passage.first is None or passage.first[0] is not member:
                continue
            if passage.member is None:
                self.decode.forget(passage)
            else:
                self.decode.lose(passage.member, passage)
            self._drop_copy(passage)
            lost.append(passage)
        for passage in sorted(lost, key=lambda each: each.index):
            self._restart(passage)

    def _kill_decode(self, member: Member) -> None:
        """What is parked is sent to another one; the others start over."""
        for passage in self.decode.strike(member, self.env.now):
            if passage.parked is None or not self._retry:
                self._restart(passage)
                continue
            if passage.transfer is not None:
                self._wires.call_off(passage.transfer)
                passage.transfer = None
            self.num_retried += 1
            if not self._to_decode(passage):
                self._tell(passage.index)

    def _restart(self, passage: Passage) -> None:
        """Begin a request again, whose tokens so far do not count; or abort it."""
        if not self._retry:
            self._end(passage, DIED)
            return
        if passage.first is not None:
            first, seq = passage.first
            first.replica.recorder.lose(seq)
            passage.first = None
        self.num_retried += 1
        if not self._to_prefill(passage):
            self._tell(passage.index)

    def _publish(self, delay: float) -> Wait:
        """Let every replica tell its state each `delay` seconds, as long as anything else can happen."""
        while self.env._queue and self.log.num_done < len(
            self.log
        ):  # SimPy has no public count of its events
            for pool in (self.prefill, self.decode):
                pool.publish()
            yield self.env.timeout(delay)

    def _at(self, moment: float, act: Callable[[], None]) -> Wait:
        yield from until(self.env, moment)
        act()
