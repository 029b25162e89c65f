//! Gateways that a client asks one after another, over networks with delays that are known to the microsecond.

use std::collections::VecDeque;

use super::world::World;
use super::*;
use crate::store::shared::batch::Due;
use crate::store::shared::cached_cell::MOMENT;

const QUOTA: u64 = 200;
/// Microseconds for a request and its answer between client and gateway.
const CLIENT: u64 = 50;
/// Microseconds from a gateway to a server.
const NEAR: u64 = 30;

struct Network {
    world: World,
    lanes: Vec<Lane>,
    limit: Arc<Limit>,
    key: Fingerprint,
}

struct Lane {
    /// Microseconds for one direction.
    way: u64,
    /// When each exchange in flight was sent, and whether it has been executed.
    under_way: VecDeque<(u64, bool)>,
    /// When pending charges are sent.
    departure: Option<u64>,
}

impl Network {
    fn new((kind, quota): (usize, u64), mode: (OnError, bool), ways: &[u64]) -> Self {
        Self::of(limit(kind, quota), mode, ways)
    }

    fn of(limit: Arc<Limit>, mode: (OnError, bool), ways: &[u64]) -> Self {
        let key = key_on(0, 1, &limit);
        let mut world = World::new(ways.len(), 1, mode, vec![vec![ask(&limit, key)]]);
        (0..ways.len()).for_each(|gateway| world.connect(gateway, 0));
        let lane = |way: &u64| Lane { way: *way, under_way: VecDeque::new(), departure: None };
        Self { world, lanes: ways.iter().map(lane).collect(), limit, key }
    }

    fn now(&self) -> u64 {
        self.world.now.micros()
    }

    fn admitted(&self) -> u64 {
        admitted(&self.world.decided, self.key)
    }

    fn send(&mut self) {
        let now = self.now();
        for (gateway, lane) in self.lanes.iter_mut().enumerate() {
            loop {
                match self.world.gateways[gateway].coordinator.due(0) {
                    Due::Never => break,
                    Due::Soon if now < *lane.departure.get_or_insert(now + micros(MOMENT)) => break,
                    Due::Now | Due::Soon => {
                        lane.departure = None;
                        self.world.run(&Step::Send(gateway, 0));
                        lane.under_way.push_back((now, false));
                    }
                }
            }
        }
    }

    /// When something happens next on the way of this gateway.
    fn next(lane: &Lane) -> Option<u64> {
        let executed = lane.under_way.iter().find(|(_, executed)| !executed).map(|(sent, _)| sent + lane.way);
        let answered = lane.under_way.front().map(|(sent, _)| sent + 2 * lane.way);
        [executed, answered, lane.departure].into_iter().flatten().min()
    }

    /// Passes time until `until`, or until one more is decided; returns whether that is so.
    fn pass(&mut self, until: u64) -> bool {
        let decided = self.world.decided.len();
        loop {
            self.send();
            if self.world.decided.len() > decided {
                return true;
            }
            let next = self.lanes.iter().enumerate().filter_map(|(gateway, lane)| Some((Self::next(lane)?, gateway)));
            let Some((at, gateway)) = next.min().filter(|(at, _)| *at <= until) else {
                self.world.run(&Step::Tick(until.saturating_sub(self.now())));
                return false;
            };
            self.world.run(&Step::Tick(at.saturating_sub(self.now())));
            let lane = &mut self.lanes[gateway];
            let now = self.world.now.micros();
            if let Some(exchange) =
                lane.under_way.iter_mut().find(|(sent, executed)| !executed && sent + lane.way <= now)
            {
                exchange.1 = true;
                self.world.run(&Step::Execute(gateway, 0));
            }
            if lane.under_way.front().is_some_and(|(sent, executed)| *executed && sent + 2 * lane.way <= now) {
                lane.under_way.pop_front();
                self.world.run(&Step::Answer(gateway, 0));
            }
        }
    }

    fn pass_all(&mut self, micros: u64) {
        let until = self.now() + micros;
        while self.pass(until) {}
    }

    fn turn(&mut self, gateway: usize) {
        self.pass(self.now() + CLIENT);
        self.ask(gateway);
    }

    /// The same without the way between client and gateway.
    fn ask(&mut self, gateway: usize) {
        self.world.ask(gateway, vec![ask(&self.limit, self.key)]);
        let is_answered = self.world.decided.last().is_some_and(|last| last.asked == self.world.now)
            || self.pass(self.now() + 1_000_000);
        assert!(is_answered, "nobody answers");
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// One more for each gateway but the one that is asked: its last admission may not have arrived. States that are kept as a
/// whole are exact, but for what drains from a bucket meanwhile.
fn most(kind: usize, gateways: usize, (begun, now): (u64, u64)) -> u64 {
    match kind {
        BUCKET => QUOTA + (now - begun) * QUOTA / 60_000_000 + 1,
        _ if is_only_whole(kind) => QUOTA,
        _ => QUOTA + gateways as u64 - 1,
    }
}

fn in_turns_hardly_more_than_the_limit_is_admitted() {
    for kind in (0..KINDS).filter(|kind| is_run(*kind)) {
        for gateways in [2, 3, 4, 8] {
            for pause in [0, 200, 2_000] {
                let mut network = Network::new((kind, QUOTA), LOCAL, &vec![NEAR; gateways]);
                let begun = network.now();
                for gateway in (0..gateways).cycle().take(240) {
                    network.turn(gateway);
                    network.pass(network.now() + pause);
                }
                let admitted = network.admitted();
                assert!(
                    (QUOTA..=most(kind, gateways, (begun, network.now()))).contains(&admitted),
                    "{admitted} admitted by {gateways} gateways, way to count {kind}, pause {pause}"
                );
            }
        }
    }
}

/// A client that sends one request after another, while gateways send, and the server executes and answers, in any order.
struct Sequence {
    world: World,
    key: Fingerprint,
}

impl Sequence {
    fn new(limit: &Arc<Limit>, gateways: usize) -> Self {
        let key = key_on(0, 1, limit);
        let mut world = World::new(gateways, 1, LOCAL, vec![vec![ask(limit, key)]]);
        (0..gateways).for_each(|gateway| world.connect(gateway, 0));
        Self { world, key }
    }

    /// Asks this gateway, which gets only as many answers of the server as it needs to decide.
    fn ask(&mut self, gateway: usize) {
        let before = self.world.decided.len();
        self.world.run(&Step::Ask { gateway, what: 0, cost: 1 });
        for step in [Step::Execute, Step::Answer, Step::Send].iter().cycle().take(30) {
            if self.world.decided.len() > before {
                return;
            }
            self.world.run(&step(gateway, 0));
        }
        panic!("nobody answers");
    }

    /// At most one too many for each gateway but one, and none too few if there were so many.
    fn check(&self) -> TestCaseResult {
        let (quota, gateways) = (self.world.quota(), self.world.gateways.len() as u64);
        let (asked, admitted) = (self.world.decided.len() as u64, admitted(&self.world.decided, self.key));
        prop_assert!(admitted < quota + gateways, "{admitted} of {quota} admitted by {gateways}");
        prop_assert!(admitted + gateways > asked.min(quota), "{admitted} of {quota} admitted by {gateways}");
        Ok(())
    }
}

/// The ways to count by sums.
const SUMS: [usize; 5] = [0, 1, 2, 6, 7];

fn of_small_quotas_no_gateway_admits_more_than_one_that_the_others_do_not_know() {
    let kinds = SUMS.into_iter().filter(|kind| is_run(*kind));
    for (kind, quota) in kinds.flat_map(|kind| (1..=64).map(move |quota| (kind, quota))) {
        for (gateways, block) in [2, 4].into_iter().flat_map(|count| [1, 3].map(|block| (count, block))) {
            let mut sequence = Sequence::new(&limit(kind, quota), gateways);
            for number in 0..2 * usize::try_from(quota).unwrap() + 20 {
                // Meanwhile nothing leaves the other gateways, and nothing arrives there.
                sequence.ask(number / block % gateways);
            }
            sequence.check().unwrap();
        }
    }
}

fn of_a_small_quota_an_admission_leaves_at_once() {
    for (kind, quota) in SUMS.into_iter().flat_map(|kind| [1, 3, 12, 30].map(|quota| (kind, quota))) {
        let mut network = Network::new((kind, quota), LOCAL, &[NEAR; 4]);
        (0..2 * quota + 8).for_each(|turn| {
            network.turn(usize::try_from(turn).unwrap() % 4);
            // The time until the admission has arrived.
            network.pass_all(2 * NEAR);
        });
        assert_eq!(network.admitted(), quota, "way to count {kind}");
    }
}

fn of_a_large_quota_one_answer_is_good_for_many_requests() {
    for kind in SUMS {
        let mut network = Network::new((kind, PLENTY), LOCAL, &[NEAR; 2]);
        network.turn(0);
        network.pass_all(10_000);
        network.turn(0);
        let before = network.world.decided.len();
        // No time passes, so there is no exchange.
        (0..50).for_each(|_| network.world.ask(0, vec![ask(&network.limit, network.key)]));
        assert_eq!(network.world.decided.len(), before + 50, "way to count {kind}");
    }
}

/// Admissions of others since the last read are read again when the next bucket has begun.
fn nothing_is_decided_by_what_was_read_in_an_earlier_bucket() {
    const WINDOW: u64 = 4_000_000;
    let strategy = Counting::SlidingWindow { precision: 10, edge: Edge::Whole };
    let rate = "30/4s".parse::<Rate>().unwrap().with_strategy(strategy).unwrap();
    let mut network = Network::of(Arc::new(Limit::new("turns", &[rate])), LOCAL, &[NEAR; 8]);
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..300 {
        network.turn(random.usize(0..8));
        network.pass_all(90_000);
    }
    let decided = network.world.decided.iter().filter(|decided| decided.admitted());
    let times: Vec<u64> = decided.map(|decided| decided.asked.micros()).collect();
    assert!(times.len() > 150, "{} admitted", times.len());
    assert!(times.windows(31).all(|times| times[30] - times[0] >= WINDOW), "more than 30 in 4 s: {times:?}");
}

/// With plenty of room nobody waits for the server, so a fast client could use up the rest before other gateways know.
fn who_is_faster_than_the_gateways_learn_gets_little_more() {
    for kind in SUMS.into_iter().filter(|kind| is_run(*kind)) {
        for requests in [10, 50, 150] {
            let mut network = Network::new((kind, QUOTA), LOCAL, &[NEAR; 8]);
            // All know that others charge the key as well.
            (0..32).for_each(|turn| network.turn(turn % 8));
            for gateway in (0..8).cycle().take(400 * 8 / requests) {
                (0..requests).for_each(|_| network.ask(gateway));
            }
            let admitted = network.admitted();
            assert!(
                (QUOTA..=most(kind, 8, (0, 0))).contains(&admitted),
                "{admitted} admitted, way to count {kind}, {requests} requests at a time"
            );
        }
    }
}

/// Near gateways replace the state all the time; one that is far would always come second.
fn a_gateway_that_is_far_away_does_not_come_second_for_ever() {
    const FAR: u64 = 4_000;
    for (mode, of_sums) in [(LOCAL, 3), (STRICT, 4)] {
        for kind in (0..KINDS).filter(|kind| is_whole(*kind) && is_run(*kind)) {
            let mut network = Network::new((kind, PLENTY), mode, &[FAR, NEAR, NEAR]);
            let mut largest = 0;
            for at in 0..2_000 {
                // Each near gateway is asked once in 80 microseconds, the far one now and then.
                let gateway = if at % 50 == 0 { 0 } else { 1 + at % 2 };
                network.world.ask(gateway, vec![ask(&network.limit, network.key)]);
                network.pass_all(40);
                largest = largest.max(network.world.models[0].largest());
            }
            network.pass_all(100_000);
            let decided = &network.world.decided;
            assert!(decided.iter().all(Decided::admitted), "{mode:?}, way to count {kind}");
            let waits = decided.iter().filter(|decided| decided.gateway == 0);
            let longest = waits.map(|decided| decided.decided.micros() - decided.asked.micros()).max();
            let exchanges = if is_only_whole(kind) { 3 } else { of_sums };
            assert!(longest <= Some(exchanges * 2 * FAR), "{longest:?}, {mode:?}, way to count {kind}");
            // Appended operations do not make it grow, except for a log.
            assert!(largest < 500 || kind != FIXED && kind != BUCKET, "{largest} bytes, way to count {kind}");
        }
    }
}

/// Gateways, how many requests each gets, and the pauses after that.
fn turns() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    let pause = prop_oneof![4 => Just(0_u64), 2 => 0..300_u64, 2 => 0..3_000_u64];
    prop::collection::vec((0..8_usize, prop_oneof![3 => Just(1_usize), 1 => 1..40_usize], pause), 30..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    fn no_choice_of_gateways_and_moments_gets_more(
        kind in 0..KINDS,
        ways in prop::collection::vec(prop_oneof![3 => 10..100_u64, 1 => 10..4_000_u64], 2..=8),
        turns in turns(),
    ) {
        let mut network = Network::new((kind, QUOTA), LOCAL, &ways);
        let begun = network.now();
        for (gateway, requests, pause) in turns {
            for _ in 0..requests {
                network.turn(gateway % ways.len());
                network.pass(network.now() + pause);
            }
        }
        let admitted = network.admitted();
        prop_assert!(admitted <= most(kind, ways.len(), (begun, network.now())), "{admitted} admitted");
    }

    /// In any order of exchanges; those of other gateways may end at any time.
    fn no_order_of_exchanges_gets_more_of_small_quotas(
        kind in prop::sample::select(SUMS.to_vec()),
        (quota, gateways) in (1_u64..=64, prop::sample::select(vec![2_usize, 4])),
        steps in prop::collection::vec((0..4_usize, 0..9_usize), 100..400),
    ) {
        let mut sequence = Sequence::new(&limit(kind, quota), gateways);
        for (gateway, step) in steps {
            let gateway = gateway % gateways;
            match step {
                0 => sequence.world.run(&Step::Send(gateway, 0)),
                1 => sequence.world.run(&Step::Execute(gateway, 0)),
                2 => sequence.world.run(&Step::Answer(gateway, 0)),
                3 => sequence.world.run(&Step::Moment),
                _ => sequence.ask(gateway),
            }
        }
        sequence.check()?;
    }

    /// All clients send without a pause, to gateways that know of each other: the requests that wait together at each other
    /// gateway may pass too much, and where nobody has to wait, twice a 128th of the quota.
    fn at_once_each_gateway_admits_no_more_than_what_waits_at_the_others(
        kind in 0..KINDS,
        ways in prop::collection::vec(prop_oneof![3 => 10..100_u64, 1 => 10..4_000_u64], 2..=8),
        clients in 1..12_usize,
        strict: bool,
    ) {
        let mode = if strict { STRICT } else { LOCAL };
        let mut network = Network::new((kind, QUOTA), mode, &ways);
        for gateway in (0..ways.len()).cycle().take(2 * ways.len()) {
            network.turn(gateway);
            network.pass_all(10_000);
        }
        let mut asked = vec![2; ways.len()];
        let begun = network.now();
        while network.now() < begun + 40_000 {
            for (gateway, asked) in asked.iter_mut().enumerate() {
                let decided = network.world.decided.iter().filter(|decided| decided.gateway == gateway).count();
                // Together they send more than enough.
                while *asked < (decided + clients).min(300) {
                    network.world.ask(gateway, vec![ask(&network.limit, network.key)]);
                    *asked += 1;
                }
            }
            network.pass_all(CLIENT);
        }
        let admitted = network.admitted();
        let each = clients as u64 + if is_whole(kind) { 0 } else { 2 * (QUOTA / 128) };
        let over = if strict || is_only_whole(kind) { 0 } else { (ways.len() as u64 - 1) * each };
        prop_assert!(admitted <= QUOTA + over + u64::from(kind == BUCKET), "{admitted} admitted");
    }
}

with_each_server! {
    in_turns_hardly_more_than_the_limit_is_admitted
    of_small_quotas_no_gateway_admits_more_than_one_that_the_others_do_not_know
    of_a_small_quota_an_admission_leaves_at_once
    of_a_large_quota_one_answer_is_good_for_many_requests
    nothing_is_decided_by_what_was_read_in_an_earlier_bucket
    who_is_faster_than_the_gateways_learn_gets_little_more
    a_gateway_that_is_far_away_does_not_come_second_for_ever
    no_choice_of_gateways_and_moments_gets_more
    no_order_of_exchanges_gets_more_of_small_quotas
    at_once_each_gateway_admits_no_more_than_what_waits_at_the_others
}
