#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use super::*;

const SIGNERS: [Signer; 3] = [Signer::Itself, Signer::ControlPlane, Signer::Person];

const START: Client = Client {
    trusts_old: true,
    trusts_new: false,
    shows: Authority::Old,
};

fn fresh(signer: Signer) -> Seen {
    Seen {
        own: Authority::Old,
        accepts_other: false,
        shows_new: false,
        signer,
    }
}

/// Two or three nodes and a client configuration, as they are.
type World = (Client, Vec<Seen>);

fn names(count: usize) -> Vec<MachineName> {
    let names = (0..count).map(|number| MachineName::from(format!("node-{number}")));
    names.collect()
}

/// The facts when these nodes are away.
fn facts(nodes: &[Seen], away: &[bool]) -> BTreeMap<MachineName, Fact> {
    let facts = nodes.iter().zip(away).map(|(seen, away)| match away {
        true => Fact::Away("off".to_owned()),
        false => Fact::Here(*seen),
    });
    names(nodes.len()).into_iter().zip(facts).collect()
}

/// The world after the step was carried out; a node gets its certificate later.
fn after(world: &World, step: &Step) -> World {
    let (client, before) = world.clone();
    let all = vec![false; before.len()];
    let (client, nodes) = super::after((client, facts(&before, &all)), step);
    let here = nodes
        .into_values()
        .zip(&before)
        .map(|(fact, before)| match fact {
            Fact::Here(seen) => Seen {
                shows_new: before.shows_new || (seen.shows_new && seen.signer == Signer::Person),
                ..seen
            },
            Fact::Away(_) => *before,
        });
    (client, here.collect())
}

/// The worlds that come about by themselves: in each, one node has got its certificate.
fn by_themselves(world: &World) -> Vec<World> {
    let count = world.1.len();
    let gets = (0..count).filter_map(|place| {
        let mut next = world.clone();
        let seen = &mut next.1[place];
        let may = seen.own == Authority::New && seen.signer != Signer::Person && !seen.shows_new;
        seen.shows_new = true;
        may.then_some(next)
    });
    gets.collect()
}

fn every_away(count: usize) -> Vec<Vec<bool>> {
    let all = (0..1_u32 << count).map(|bits| (0..count).map(|it| bits >> it & 1 == 1).collect());
    all.collect()
}

/// The client configuration reaches the node if it is up.
fn reaches(client: Client, seen: Seen) -> bool {
    let let_in = match client.shows {
        Authority::Old => seen.accepts_old(),
        Authority::New => seen.accepts_new(),
    };
    let believes = match seen.shows_new {
        true => client.trusts_new,
        // A certificate of the old authority that the node does not accept any more is not shown.
        false => client.trusts_old && seen.accepts_old(),
    };
    let_in && believes
}

/// All worlds that a rotation of these nodes may come to, whichever nodes are away at each look and wherever it is killed.
fn reachable(signers: &[Signer]) -> BTreeSet<World> {
    let start = (START, signers.iter().map(|it| fresh(*it)).collect());
    let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        open.extend(by_themselves(&world));
        for away in every_away(signers.len()) {
            let step = next(world.0, &facts(&world.1, &away));
            open.push(after(&world, &step));
        }
    }
    seen
}

/// All combinations of signers for so many nodes.
fn fleets(count: u32) -> Vec<Vec<Signer>> {
    let fleets = (0..3_usize.pow(count)).map(|number| {
        let digit = |place| SIGNERS[number / 3_usize.pow(place) % 3];
        (0..count).map(digit).collect()
    });
    fleets.collect()
}

#[test]
fn at_each_moment_the_client_reaches_every_node_that_is_up() {
    let mut count = 0;
    for fleet in (1..=3).flat_map(fleets) {
        for (client, nodes) in reachable(&fleet) {
            count += 1;
            for seen in &nodes {
                assert!(reaches(client, *seen), "{client:?} {nodes:?}");
            }
        }
    }
    println!("{count} states");
    assert!(count > 800, "{count}");
}

#[test]
fn from_each_moment_it_comes_to_its_end_once_all_nodes_are_up() {
    for fleet in (1..=3).flat_map(fleets) {
        let all = vec![false; fleet.len()];
        for mut world in reachable(&fleet) {
            let mut steps = 0;
            while next(world.0, &facts(&world.1, &all)) != Step::Done {
                let step = next(world.0, &facts(&world.1, &all));
                world = match step {
                    Step::Wait(_) => by_themselves(&world).remove(0),
                    step => after(&world, &step),
                };
                steps += 1;
                assert!(steps < 40, "{world:?}");
            }
            let (client, nodes) = world;
            assert!(client.shows == Authority::New && !client.trusts_old);
            let all_new =
                |seen: &Seen| seen.own == Authority::New && seen.shows_new && !seen.accepts_other;
            assert!(nodes.iter().all(all_new), "{nodes:?}");
        }
    }
}

/// While a node is away, the old authority is dropped nowhere.
#[test]
fn nothing_is_dropped_while_a_node_is_away() {
    for fleet in (1..=3).flat_map(fleets) {
        for (client, nodes) in reachable(&fleet) {
            for away in every_away(fleet.len()) {
                let step = next(client, &facts(&nodes, &away));
                let drops = matches!(
                    step,
                    Step::Node(_, NodeChange::Drop)
                        | Step::Client(ClientChange::ShowNew | ClientChange::TrustNewAlone)
                        | Step::Done
                );
                assert!(!(drops && away.contains(&true)), "{step:?} {nodes:?}");
            }
        }
    }
}

/// Every fact of a node beside every fact of the client: the table of one node.
#[test]
fn the_table_of_one_node() {
    use NodeChange::{Accept, Drop, Issue, Sign};
    let client = |trusts_old, trusts_new, shows| Client {
        trusts_old,
        trusts_new,
        shows,
    };
    let (old, new) = (Authority::Old, Authority::New);
    let begun = client(true, true, old);
    let shown = client(true, true, new);
    let ended = client(false, true, new);
    let seen = |own, accepts_other, shows_new, signer| Seen {
        own,
        accepts_other,
        shows_new,
        signer,
    };
    for signer in SIGNERS {
        let after_issue = match signer {
            Signer::Person => Some(Sign),
            Signer::Itself | Signer::ControlPlane => None,
        };
        let table = [
            (
                seen(old, false, false, signer),
                [Some(Some(Accept)), Some(Some(Accept))],
            ),
            (seen(old, true, false, signer), [None, Some(Some(Issue))]),
            (seen(new, true, false, signer), [None, Some(after_issue)]),
            (seen(new, false, false, signer), [None, Some(after_issue)]),
            (seen(new, true, true, signer), [None, Some(Some(Drop))]),
        ];
        for (seen, expected) in table {
            let nodes = facts(&[seen], &[false]);
            let name = names(1).remove(0);
            // First of all the client believes both.
            assert_eq!(next(START, &nodes), Step::Client(ClientChange::TrustBoth));
            for (client, expected) in [begun, shown].into_iter().zip(expected) {
                let found = next(client, &nodes);
                let is_expected = match expected {
                    None => found == Step::Client(ClientChange::ShowNew),
                    Some(Some(change)) => found == Step::Node(name.clone(), change),
                    Some(None) => matches!(found, Step::Wait(_)),
                };
                assert!(is_expected, "{client:?} {seen:?}: {found:?}");
            }
        }
        let done = facts(&[seen(new, false, true, signer)], &[false]);
        let last = Step::Client(ClientChange::TrustNewAlone);
        assert_eq!(next(shown, &done), last);
        assert_eq!(next(ended, &done), Step::Done);
        let away = facts(&[fresh(signer)], &[true]);
        assert!(matches!(next(begun, &away), Step::Wait(_)));
        assert!(matches!(next(ended, &away), Step::Wait(_)));
    }
}

#[test]
fn control_planes_come_before_those_who_ask_them() {
    let client = Client {
        trusts_old: true,
        trusts_new: true,
        shows: Authority::New,
    };
    let ready = |signer| Seen {
        accepts_other: true,
        ..fresh(signer)
    };
    let nodes = [ready(Signer::ControlPlane), ready(Signer::Itself)];
    let step = next(client, &facts(&nodes, &[false, false]));
    assert_eq!(
        step,
        Step::Node(MachineName::from("node-1"), NodeChange::Issue)
    );
}
