//! A client, a library and a handler do anything in any order: a model of them checks when connections end.

use proptest::prelude::*;

use super::*;

/// The interval between two checks, and the limits that they use.
const TICK: Coarse = 100;
const LIMITS: TimeLimits = TimeLimits { header: 3000, idle: 5000, body: 4000, half_closed: 1000, rest: 700, tick: 0 };

#[derive(Clone, Copy, Debug)]
enum Act {
    SendPart,
    /// The rest of a head, or all of one.
    SendHead,
    /// An empty line, or a ping.
    SendNothing,
    StopReading,
    Read,
    HalfClose,
    Break,
    /// To the oldest request.
    Answer,
    /// The oldest request.
    LeaveUnanswered,
    Upgrade(bool),
    Ends,
    Drains,
    Wait(Coarse),
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate observation")]
struct World {
    connection: Lifecycle,
    now: Coarse,
    is_http2: bool,
    /// Heads and parts of them that are in the system and that nobody has read.
    unread: Vec<Act>,
    /// How many heads have begun to come, how many are complete, and how many were passed on.
    heads: (u64, u64, u64),
    in_flight: u32,
    unanswered: u32,
    is_resting: bool,
    is_upgrading: bool,
    has_served: bool,
    is_blocked: bool,
    /// The last moment with an excuse for each deadline.
    no_part_at: Coarse,
    reads_at: Coarse,
    has_work_at: Coarse,
    is_whole_at: Coarse,
    is_broken: bool,
    asked_at: Option<Coarse>,
    told_at: Option<Coarse>,
    closed: Option<CloseReason>,
}

impl World {
    fn new(is_http2: bool) -> Self {
        Self {
            connection: Lifecycle::new(0),
            now: 0,
            is_http2,
            unread: Vec::new(),
            heads: (0, 0, 0),
            in_flight: 0,
            unanswered: 0,
            is_resting: true,
            is_upgrading: false,
            has_served: false,
            is_blocked: false,
            no_part_at: 0,
            reads_at: 0,
            has_work_at: 0,
            is_whole_at: 0,
            is_broken: false,
            asked_at: None,
            told_at: None,
            closed: None,
        }
    }

    fn record(&mut self, event: Event) {
        let was_idle = self.connection.is_idle();
        self.connection.record(event, self.now);
        assert!(was_idle || !self.connection.is_idle() || event.may_finish(), "{event:?} of {self:?}");
    }

    /// Whether a request, or a part of one, has come that is not answered completely.
    fn has_work(&self) -> bool {
        self.in_flight > 0 || self.is_blocked || self.heads.0 > self.heads.2
    }

    /// Records that there is an excuse now for each deadline that has one.
    fn remember(&mut self) {
        let has_work = self.has_work();
        let waits_for_head = self.heads.0 > self.heads.2 && (self.is_http2 || self.in_flight == 0);
        for (has_excuse, at) in [
            (!waits_for_head || !self.is_http2 && self.is_blocked, &mut self.no_part_at),
            (!self.is_blocked, &mut self.reads_at),
            (has_work, &mut self.has_work_at),
        ] {
            if has_excuse {
                *at = self.now;
            }
        }
        // A later request is served, and does not keep the connection.
        if self.now - self.has_work_at >= LIMITS.idle {
            self.asked_at.get_or_insert(self.now);
        }
    }

    fn serves_no_more(&self) -> bool {
        !self.is_http2 && self.unanswered > 0
    }

    /// The library does what it can. It reads a head of HTTP/1 only when the previous response is sent.
    fn look(&mut self) {
        loop {
            let can_begin = self.is_http2 || self.in_flight == 0 && !self.is_blocked && self.unanswered == 0;
            if can_begin && self.heads.1 > self.heads.2 {
                self.heads.2 += 1;
                self.in_flight += 1;
                self.is_whole_at = self.now;
                self.record(Event::RequestBegins);
                continue;
            }
            if !can_begin || self.unread.is_empty() {
                return;
            }
            let act = self.unread.remove(0);
            let is_incomplete = self.heads.0 > self.heads.1;
            match act {
                Act::SendPart if !is_incomplete => self.heads.0 += 1,
                Act::SendHead => {
                    self.heads.0 += u64::from(!is_incomplete);
                    self.heads.1 = self.heads.0;
                }
                _ => {}
            }
            self.is_whole_at = self.now;
            match self.is_http2 {
                true => self.record(Event::HeadIsIncomplete(self.heads.0 > self.heads.1)),
                false => self.record(Event::Received(self.heads.0)),
            }
        }
    }

    fn run(&mut self) {
        let (mut has_looked, now) = (false, self.now);
        while self.closed.is_none() {
            let is_unread = match self.is_resting {
                true => !self.unread.is_empty(),
                false => !has_looked || !self.is_http2 && !self.unread.is_empty(),
            };
            let goes_on = self.connection.goes_on();
            let step = self.connection.step(|| now, || is_unread);
            let is_timed = self.connection.expected_until().is_some();
            assert!(!goes_on || step == Step::GoOn && !is_timed, "nobody asks for this step: {step:?} {self:?}");
            match step {
                Step::Close(reason) => {
                    self.check_close(reason, has_looked || self.is_resting);
                    self.closed = Some(reason);
                }
                Step::Rest => {
                    assert!(!self.has_work() && !self.is_http2 && self.asked_at.is_none(), "it rests: {self:?}");
                    // It wakes as soon as there is something to read.
                    self.is_resting = true;
                    self.record(Event::Rests);
                    continue;
                }
                Step::Finish => {
                    assert!(self.is_http2 || self.in_flight > 0 && !self.is_upgrading, "it cannot be told: {self:?}");
                    assert!(self.is_http2 || self.unanswered == 0, "nobody hears it: {self:?}");
                    self.told_at.get_or_insert(now);
                    // HTTP/1 ends by itself after this request.
                }
                Step::GoOn => {}
            }
            if has_looked || self.is_resting && self.unread.is_empty() {
                let waits = self.in_flight > 0 || self.is_blocked || self.closed.is_some();
                assert!(waits || !self.serves_no_more(), "it goes on: {self:?}");
                return;
            }
            if std::mem::take(&mut self.is_resting) {
                self.heads = (0, 0, 0);
                self.record(Event::Wakes);
                if self.is_http2 {
                    self.record(Event::TellsItsEnd);
                }
                continue;
            }
            self.look();
            has_looked = true;
        }
    }

    fn check_close(&self, reason: CloseReason, has_looked: bool) {
        let lasts = |since: Coarse| self.now - since;
        let is_right = match reason {
            CloseReason::Idle => {
                let is_told = match self.is_http2 && !self.is_resting {
                    true => self.told_at.is_some_and(|at| lasts(at) >= EXPECTED_FOR),
                    false => self.unread.is_empty(),
                };
                let is_done = has_looked && is_told && !self.has_work() && !self.is_upgrading;
                let may_end = self.asked_at.is_some() || lasts(self.has_work_at) >= LIMITS.idle;
                is_done && may_end || !self.has_served && self.in_flight == 0 && self.now >= LIMITS.header
            }
            CloseReason::SlowHead => lasts(self.no_part_at) >= LIMITS.header,
            CloseReason::NotReading => self.is_blocked && lasts(self.reads_at) >= LIMITS.body,
            CloseReason::Unanswered => self.serves_no_more() && self.in_flight == 0 && !self.is_blocked,
            CloseReason::Gone => {
                let is_silent = self.in_flight > 0 && !self.is_blocked && lasts(self.is_whole_at) >= LIMITS.half_closed;
                self.is_broken || is_silent
            }
        };
        assert!(is_right, "{reason:?}: {self:?}");
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::SendPart | Act::SendHead | Act::SendNothing => self.unread.push(act),
            // With HTTP/1, everything is sent when no request is in flight.
            Act::StopReading if self.in_flight > 0 || self.is_http2 && self.has_served => {
                self.is_blocked = true;
                self.record(Event::Sent(false));
            }
            Act::Read if self.is_blocked => {
                self.is_blocked = false;
                self.is_whole_at = self.now;
                self.record(Event::Sent(true));
                self.record(Event::Flushed);
            }
            Act::HalfClose if !self.is_http2 && self.in_flight > 0 => {
                self.is_whole_at = self.now;
                self.record(Event::HalfClosed);
            }
            Act::Break => {
                self.is_broken = true;
                self.record(Event::Broken);
            }
            Act::Answer if self.in_flight > 0 => {
                if !self.is_http2 {
                    self.record(Event::Answers);
                }
                (self.in_flight, self.has_served, self.is_upgrading) = (self.in_flight - 1, true, false);
                self.record(Event::Upgrades(false));
                self.record(Event::RequestEnds);
                if !self.is_blocked {
                    self.record(Event::Flushed);
                }
            }
            Act::LeaveUnanswered if self.in_flight > 0 => {
                (self.in_flight, self.unanswered, self.has_served) = (self.in_flight - 1, self.unanswered + 1, true);
                self.record(Event::RequestEnds);
                if !self.is_http2 {
                    self.record(Event::LeftUnanswered);
                }
                let may_send = self.is_http2 || self.closed.is_some() || !self.connection.is_unasked();
                assert!(may_send, "earlier responses are dropped: {self:?}");
            }
            Act::Upgrade(is_so) if !self.is_http2 && self.in_flight > 0 => {
                self.is_upgrading = is_so;
                self.record(Event::Upgrades(is_so));
            }
            Act::Ends | Act::Drains => {
                self.asked_at.get_or_insert(self.now);
                self.record(if let Act::Ends = act { Event::Ends } else { Event::Drains });
            }
            Act::Wait(time) => {
                let until = self.now + time;
                while self.now < until && self.closed.is_none() {
                    self.now += TICK;
                    let _ = self.connection.check(&LIMITS, self.now);
                    self.run();
                    self.remember();
                }
            }
            _ => {}
        }
        self.run();
        self.remember();
    }

    fn after(is_http2: bool, acts: Vec<Act>) -> Self {
        let mut world = Self::new(is_http2);
        acts.into_iter().for_each(|act| world.act(act));
        world
    }

    /// The handler answers everything, and nothing else happens for `time`.
    fn closes_within(mut self, time: Coarse) -> Result<(), TestCaseError> {
        for _ in 0..time / TICK {
            while self.in_flight > 0 {
                self.act(Act::Answer);
            }
            self.act(Act::Wait(TICK));
        }
        prop_assert!(self.closed.is_some(), "it goes on for ever: {:?}", self);
        Ok(())
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    const OFTEN: &[Act] = &[Act::SendPart, Act::SendHead, Act::SendHead, Act::SendNothing, Act::Answer, Act::Answer];
    const SELDOM: &[Act] = &[
        Act::StopReading,
        Act::Read,
        Act::HalfClose,
        Act::Upgrade(true),
        Act::Upgrade(false),
        Act::Ends,
        Act::Drains,
        Act::Break,
        Act::LeaveUnanswered,
        Act::LeaveUnanswered,
    ];
    let act = prop_oneof![
        6 => prop::sample::select(OFTEN).boxed(),
        2 => prop::sample::select(SELDOM).boxed(),
        3 => (0..20_u64).prop_map(|ticks| Act::Wait(ticks * TICK)).boxed(),
    ];
    prop::collection::vec(act, 0..30)
}

#[test]
fn a_client_that_has_closed_its_side_waits_for_each_part_of_its_response() {
    let mut connection = Lifecycle::new(0);
    for event in [Event::Wakes, Event::Received(1), Event::RequestBegins, Event::HalfClosed] {
        connection.record(event, 0);
    }
    connection.record(Event::Answers, 900);
    for at in [900, 1800, 2700] {
        assert!(!connection.check(&LIMITS, at), "{at}");
        connection.record(Event::Sent(true), at);
    }
    connection.record(Event::Sent(false), 3000);
    assert!(!connection.check(&LIMITS, 5000), "it may be reading");
    connection.record(Event::Sent(true), 5000);
    assert!(!connection.check(&LIMITS, 5900));
    assert!(connection.check(&LIMITS, 6000));
    assert_eq!(connection.step(|| 6000, || false), Step::Close(CloseReason::Gone));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// [`World::check_close`] checks the reason.
    #[test]
    fn a_connection_is_closed_for_a_reason(is_http2: bool, acts in acts()) {
        World::after(is_http2, acts);
    }

    #[test]
    fn a_drain_ends_every_connection_in_a_bounded_time(is_http2: bool, acts in acts()) {
        let mut world = World::after(is_http2, acts);
        world.act(Act::Drains);
        world.closes_within(LIMITS.header + LIMITS.body + EXPECTED_FOR + 2 * TICK)?;
    }

    #[test]
    fn a_client_that_does_nothing_more_is_let_go(is_http2: bool, acts in acts()) {
        let bound = LIMITS.header + LIMITS.body + LIMITS.idle + EXPECTED_FOR + 2 * TICK;
        World::after(is_http2, acts).closes_within(bound)?;
    }

    #[test]
    fn bytes_of_a_head_do_not_prolong_its_time(is_http2: bool, acts in acts(), drains: bool) {
        let mut world = World::after(is_http2, acts);
        if drains {
            world.act(Act::Drains);
        }
        for _ in 0..(LIMITS.header + LIMITS.body + EXPECTED_FOR) / TICK + 2 {
            while world.in_flight > 0 {
                world.act(Act::Answer);
            }
            world.act(Act::SendPart);
            world.act(Act::Wait(TICK));
        }
        prop_assert!(world.closed.is_some(), "a slow client lives for ever: {:?}", world);
    }
}
