//! The suite: all behaviours in order, measured side by side, again while nothing can be said.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::behaviour::{Behaviour, Group, Need, Outcome, Verdict};
use super::target::Target;
use super::{accuracy, cost, fields, forgetting, keys, never_fewer, never_more, truth};

/// How often something is measured until something can be said.
const ATTEMPTS: usize = 5;

/// All behaviours, by group.
pub(crate) fn behaviours() -> impl Iterator<Item = &'static Behaviour> {
    let files = [
        never_more::ALL,
        keys::ALL,
        never_fewer::ALL,
        truth::ALL,
        fields::ALL,
        forgetting::ALL,
        accuracy::ALL,
        cost::ALL,
    ];
    files.into_iter().flatten()
}

/// What is not measured, because the limiter does not claim it: names of behaviours, groups and needs.
#[derive(Default)]
pub(crate) struct Selection {
    pub(crate) without: Vec<String>,
    /// If any are named, only these behaviours and groups.
    pub(crate) only: Vec<String>,
}

/// All names that `--without` knows.
pub(crate) fn names() -> Vec<&'static str> {
    let needs = [Need::RetryAfter, Need::RateLimit, Need::Http2, Need::Instances, Need::Memory, Need::FailingPath];
    let needs = needs.into_iter().chain([Need::FreePath, Need::AccessLog]).map(|need| need.names().0);
    let groups = Group::ALL.into_iter().map(|group| group.names().0);
    needs.chain(groups).chain(behaviours().map(|behaviour| behaviour.id)).collect()
}

impl Selection {
    /// Why a behaviour is not measured.
    fn excludes(&self, behaviour: &Behaviour, target: &Target) -> Option<String> {
        let is_named = |names: &[String], name: &str| names.iter().any(|other| other == name);
        let own = [behaviour.id, behaviour.group.names().0];
        let needs = behaviour.needs.iter().map(|need| need.names().0);
        if let Some(name) = own.into_iter().chain(needs).find(|name| is_named(&self.without, name)) {
            return Some(format!("--without {name}"));
        }
        if !self.only.is_empty() && !own.iter().any(|name| is_named(&self.only, name)) {
            return Some("not in --only".to_owned());
        }
        let missing = behaviour.needs.iter().find(|need| !need.is_given(target))?;
        Some(format!("{} is not given", missing.names().1.unwrap_or(missing.names().0)))
    }
}

/// What was found out about a behaviour.
pub(crate) struct Finding {
    pub(crate) behaviour: &'static Behaviour,
    pub(crate) outcome: Outcome,
}

/// Measures everything. What is about memory and time comes last and alone, because other work would disturb it.
pub(crate) async fn run(target: &Arc<Target>, selection: &Selection) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut tasks = JoinSet::new();
    let mut alone = Vec::new();
    for behaviour in behaviours() {
        if let Some(reason) = selection.excludes(behaviour, target) {
            findings.push(Finding { behaviour, outcome: Outcome::new(Verdict::NotApplicable, reason) });
        } else if [Group::Forget, Group::Cost].contains(&behaviour.group) {
            alone.push(behaviour);
        } else {
            tasks.spawn(measure(behaviour, Arc::clone(target)));
        }
    }
    for finding in tasks.join_all().await {
        // Alone, the machine may be fast enough.
        match finding.outcome.verdict {
            Verdict::Undecided => alone.push(finding.behaviour),
            _ => findings.push(finding),
        }
    }
    for behaviour in alone {
        findings.push(measure(behaviour, Arc::clone(target)).await);
    }
    let place = |finding: &Finding| behaviours().position(|behaviour| behaviour.id == finding.behaviour.id);
    findings.sort_by_key(place);
    findings
}

async fn measure(behaviour: &'static Behaviour, target: Arc<Target>) -> Finding {
    let mut is_suspect = false;
    let mut outcome = Outcome::undecided("not measured");
    for _ in 0..ATTEMPTS {
        let begun = Instant::now();
        outcome = (behaviour.run)(Arc::clone(&target)).await.unwrap_or_else(|error| unanswered(&error));
        let is_short = begun.elapsed() < target.windows(0.4);
        match outcome.verdict {
            // Windows that begin once in each window do not begin inside of two short times that are half a window apart.
            Verdict::Suspect if is_short && is_suspect => outcome.verdict = Verdict::Failed,
            Verdict::Suspect if is_short => {
                is_suspect = true;
                sleep_until((begun + target.windows(0.5)).into()).await;
            }
            Verdict::Suspect | Verdict::Undecided => is_suspect = false,
            _ => {}
        }
        if ![Verdict::Suspect, Verdict::Undecided].contains(&outcome.verdict) {
            break;
        }
    }
    if outcome.verdict == Verdict::Suspect {
        outcome.verdict = Verdict::Undecided;
    }
    Finding { behaviour, outcome }
}

/// A limiter that speaks no HTTP has failed; one that is away has not been measured.
fn unanswered(error: &io::Error) -> Outcome {
    let verdict = match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::Other => Verdict::Failed,
        _ => Verdict::Undecided,
    };
    Outcome::new(verdict, error.to_string())
}

/// The exit code: 0 if all have passed, 1 if any has failed, 3 if nothing can be said about some.
pub(crate) fn exit_code(findings: &[Finding]) -> u8 {
    let has = |verdict| findings.iter().any(|finding| finding.outcome.verdict == verdict);
    if has(Verdict::Failed) {
        1
    } else if has(Verdict::Undecided) {
        3
    } else {
        0
    }
}

/// Waits until all instances accept connections.
pub(crate) async fn wait_for(target: &Target, patience: Duration) -> Result<(), String> {
    let end = Instant::now() + patience;
    for instance in &target.instances {
        while let Err(error) = tokio::net::TcpStream::connect(instance.address).await {
            if Instant::now() > end {
                return Err(format!("nobody listens at {}: {error}", instance.host));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}
