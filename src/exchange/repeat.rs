//! The last refusal of a connection, ready to be given again: whoever sends the same request over and over is refused
//! without its being read.

use super::Worker;
use crate::account::{End, Line, Outcome};
use crate::clock::{self, Time};
use crate::decide::Standing;
use crate::respond::limits::LastRefusal;

/// What the refusal rests on besides the request itself.
pub(super) struct Repeat {
    /// The index of the route.
    pub route: usize,
    /// What was asked.
    pub standing: Standing,
    /// What the access log said of it, if there is one.
    pub line: Option<Box<Line>>,
}

impl Repeat {
    /// Whether the same request, come again at `now`, gets the same answer in every byte but its date. Then it is counted
    /// and logged.
    pub(super) fn serve(&self, worker: &Worker, last: &LastRefusal, now: Time) -> bool {
        let snapshot = worker.snapshots.current();
        // After a reload this may be another route. That has another report than told the last refusal.
        let Some(route) = snapshot.served.get(self.route).filter(|route| last.is_of(&route.report)) else {
            return false;
        };
        let Some(judged) = self.standing.judge(&route.guards, &worker.store, now) else { return false };
        let Some(status) = last.again(&route.report, &judged, now) else { return false };
        Standing::count(&route.guards, &judged, &worker.store, worker.index);
        let line = self.line.as_deref();
        let micros = clock::now().micros().saturating_sub(now.micros());
        let end = End { outcome: Outcome::Limited, reason: None, status: Some(status) };
        snapshot.book(Some(self.route)).close(end, micros, line);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::path::Path;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use arc_swap::ArcSwap;
    use http::{Request, StatusCode};

    use super::super::{Caller, Snapshots};
    use super::*;
    use crate::accept::{Arrival, Handler};
    use crate::clock;
    use crate::gateway::{Gateway, Kept};
    use crate::store::Store;

    /// A connection to a gateway whose only route has all of these limits, each a name and what it says.
    fn caller(limits: &[(&str, &str)]) -> Caller {
        let names: Vec<_> = limits.iter().map(|(name, _)| format!("{name:?}")).collect();
        let sections: Vec<_> = limits.iter().map(|(name, text)| format!("[limits.{name}]\n{text}\n")).collect();
        let route =
            format!("[[routes]]\npath = \"/*\"\nlimits = [{}]\nrespond = {{ status = 200 }}\n", names.join(", "));
        let text = format!("{}{route}[log]\naccess = false\n", sections.concat());
        let config = crate::config::parse(text.as_bytes(), "gateway.toml", Path::new("")).unwrap();
        let gateway = Arc::new(ArcSwap::from_pointee(Gateway::build(&config, &Kept::new(1))));
        let store = Arc::new(Store::open(&config.store, 1).unwrap());
        let worker = Worker { index: 0, snapshots: Snapshots::new(gateway, 0), store, pools: Rc::default() };
        Caller::new(Rc::new(worker), IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// A request whose bytes are kept or not: its status, and whether it might be answered so again.
    fn ask(caller: &Caller, fields: &[(&str, &str)], is_kept: bool) -> (StatusCode, bool) {
        let mut request = Request::get("/").header("host", "a");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let mut arrival = Arrival { head, body: None, is_ambiguous: false, is_kept, may_repeat: false };
        let handled = pin!(caller.handle(&mut arrival)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(response) = handled else { panic!("it waits") };
        (response.status(), arrival.may_repeat)
    }

    /// One whose limits are used up for such requests.
    fn refused(limits: &[(&str, &str)], fields: &[(&str, &str)]) -> Caller {
        let caller = caller(limits);
        while ask(&caller, fields, false).0 == 200 {}
        assert!(!caller.repeats(clock::now()), "nothing is kept");
        caller
    }

    /// Whether a refusal by these limits is given again.
    fn repeats(limits: &[(&str, &str)], fields: &[(&str, &str)]) -> bool {
        let caller = refused(limits, fields);
        // In between the second may end that is told.
        (0..3).any(|_| ask(&caller, fields, true).1 && caller.repeats(clock::now()))
    }

    /// Whether it might be.
    fn may_repeat(limits: &[(&str, &str)], fields: &[(&str, &str)]) -> bool {
        ask(&refused(limits, fields), fields, true).1
    }

    const GLOBAL: &str = "key = \"global\"\nrates = [\"3/h\", \"9/d\"]";

    #[test]
    fn refusals_by_counters_alone_are_given_again() {
        assert!(repeats(&[("a", GLOBAL)], &[]));
        assert!(repeats(&[("a", "key = \"header:k\"\nrates = [\"3/h\"]\nmissing = \"reject\"")], &[("k", "1")]));
        assert!(repeats(
            &[("a", "key = \"global\"\nrates = [\"9/h\"]\ncost = { request_header = \"c\" }")],
            &[("c", "4")]
        ));
        assert!(repeats(&[("a", GLOBAL), ("b", "key = \"client-ip\"\nrates = [\"5/h\"]")], &[]));
        // The rates that hold for the request, not the limit's own.
        let of = "key = \"header:k\"\nrates = [\"900/h\"]\ntier = \"header:t\"";
        let tiers = "[limits.a.tiers.low]\nrates = [\"3/h\"]\n[limits.a.tiers.high]\nrates = [\"5/h\"]";
        let overrides = "[[limits.a.overrides]]\nkeys = [\"1\"]\nrates = [\"7/h\"]";
        let limit = format!("{of}\n{tiers}\n{overrides}");
        for fields in [[("k", "1"), ("t", "none")], [("k", "2"), ("t", "low")], [("k", "3"), ("t", "high")]] {
            assert!(repeats(&[("a", &limit)], &fields), "{fields:?}");
        }
    }

    #[test]
    fn what_else_may_have_a_say_is_asked_every_time() {
        let of = |more: &str| format!("key = \"global\"\nrates = [\"5/h\"]\n{more}");
        for more in [
            "on_limit = \"shadow\"",
            "on_limit = \"silent\"",
            "on_limit = \"delay\"\nmax_delay = \"1s\"",
            "max_in_flight = 100",
        ] {
            assert!(!may_repeat(&[("a", GLOBAL), ("b", &of(more))], &[]), "{more}");
        }
        assert!(!may_repeat(&[("a", GLOBAL), ("b", "key = \"header:k\"\nrates = [\"5/h\"]\nmissing = \"skip\"")], &[]));
        let exempt = of("[[limits.b.overrides]]\nkeys = [\"*\"]\nexempt = true").replace("global", "header:k");
        assert!(!may_repeat(&[("a", GLOBAL), ("b", &exempt)], &[("k", "1")]));
        assert!(!may_repeat(&[("a", GLOBAL), ("b", GLOBAL)], &[]), "which of the two is told may change");
    }

    #[test]
    fn it_is_over_when_another_wait_is_to_be_told_or_there_is_room() {
        let limit = "key = \"header:k\"\nrates = [\"3/h\"]";
        let caller = refused(&[("a", limit)], &[("k", "1")]);
        assert_eq!(ask(&caller, &[("k", "1")], true), (StatusCode::TOO_MANY_REQUESTS, true));
        let now = clock::now();
        assert!(caller.repeats(now));
        let later = |seconds| now.after(Duration::from_secs(seconds));
        assert!(!caller.repeats(later(2)), "another wait");
        assert!(!caller.repeats(later(2 * 3600)), "there is room again");
    }
}
