//! A command for several nodes: each is asked in turn, also after one has failed.

use instar_client::{Failure, FailureKind, Node};

use crate::cli::Global;
use crate::{exit, target};

/// Runs the command for each node in turn. A failure of one node is told at once, and the others are asked all the same; the end is a failure
/// of the worst kind of all.
///
/// # Errors
/// There is no node to ask, or the command failed for one of them.
pub(crate) async fn each_node(
    global: &Global,
    mut run: impl AsyncFnMut(&Node) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let nodes = target::each(global).await?;
    let all = nodes.len();
    let mut failed = Vec::new();
    for (name, node) in nodes {
        let done = match node {
            Ok(node) => run(&node).await,
            Err(failure) => Err(failure),
        };
        let Err(failure) = done else {
            continue;
        };
        // Nobody reads the output of the others either.
        if all == 1 || exit::is_closed_output(&failure) {
            return Err(failure);
        }
        let failure = named(&name, failure);
        exit::report(&failure, global.output);
        failed.push((name, failure));
    }
    end(failed, all)
}

/// The failure with the name of its node in front, unless it says so itself.
fn named(name: &str, failure: Failure) -> Failure {
    if failure.chain().contains(name) {
        return failure;
    }
    let advice = failure.advice().map(str::to_owned);
    let named = Failure::new(failure.kind(), name).because(failure);
    match advice {
        Some(advice) => named.advise(advice),
        None => named,
    }
}

/// The end of a command for several nodes, by those that failed.
///
/// # Errors
/// One of them failed: the worst failure is the cause.
pub(crate) fn end(failed: Vec<(String, Failure)>, all: usize) -> Result<(), Failure> {
    let number = failed.len();
    let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    let text = format!("{number} of {all} nodes failed ({})", names.join(", "));
    let failures = failed.into_iter().map(|(_, failure)| failure);
    match failures.max_by_key(|failure| weight(failure.kind())) {
        Some(worst) => Err(Failure::new(worst.kind(), text).because(worst)),
        None => Ok(()),
    }
}

/// How bad a failure is among those of several nodes: the least if it may be gone at the next try, and the most if nothing is known of it.
fn weight(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Unreachable => 0,
        FailureKind::TimedOut => 1,
        FailureKind::NotAuthorized => 2,
        FailureKind::Refused => 3,
        FailureKind::Usage => 4,
        FailureKind::RolledBack => 5,
        FailureKind::Failed => 6,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_worst_failure_is_the_end() {
        use FailureKind::{
            Failed, NotAuthorized, Refused, RolledBack, TimedOut, Unreachable, Usage,
        };
        let ended = |kinds: &[FailureKind]| {
            let failed = kinds.iter().enumerate();
            let failed = failed.map(|(number, kind)| {
                let name = format!("n{number}");
                (name.clone(), Failure::new(*kind, format!("{name}: no")))
            });
            end(failed.collect(), 9)
        };
        assert!(ended(&[]).is_ok());
        let order = [
            Unreachable,
            TimedOut,
            NotAuthorized,
            Refused,
            Usage,
            RolledBack,
            Failed,
        ];
        for pair in order.windows(2) {
            for kinds in [[pair[0], pair[1]], [pair[1], pair[0]]] {
                assert_eq!(ended(&kinds).unwrap_err().kind(), pair[1], "{kinds:?}");
            }
        }
        assert_eq!(
            ended(&[Unreachable, Refused]).unwrap_err().chain(),
            "2 of 9 nodes failed (n0, n1): n1: no"
        );
    }

    #[test]
    fn a_failure_names_its_node() {
        let failure = |text: &str| Failure::new(FailureKind::Usage, text).advise("help");
        assert_eq!(named("n1", failure("n1: no")).chain(), "n1: no");
        let given = named("n1", failure("no field"));
        assert_eq!(given.chain(), "n1: no field");
        assert_eq!(given.advice(), Some("help"));
    }
}
