//! The real airlock, the FleetLock server of other fleets: machines take turns there, by the client that machined has. The stand-in that tests in
//! machines use answers as it does.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use instar_fleet_lock::{LockError, Slot};
use instar_http_client::{Client, Proxies, Trust};
use instar_tests::{Airlock, FleetLockServer, Outcome, Scratch, Test, chapters, tests};

/// A group whose machines switch one after the other, and one of which two may switch at once.
const ONE: &str = "harbour";
const TWO: &str = "yard-2.north";
/// The identities of machines.
const FIRST: &str = "0f6c1d3ab2";
const SECOND: &str = "7be2c9014d";
const THIRD: &str = "c3d8a5f710";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        machines_take_turns_at_a_real_server,
        the_stand_in_answers_as_the_real_server,
        a_server_in_trouble_lets_no_machine_switch,
    ]
}

/// The machines of groups at one server, and the client that each of them has.
struct Machines {
    client: Client,
    server: String,
}

impl Machines {
    fn of(server: String) -> Self {
        let proxies = Proxies::from_environment(|_| None);
        Self {
            client: Client::new(Trust::default(), &proxies),
            server,
        }
    }

    fn slot<'a>(&'a self, group: &'a str, id: &'a str) -> Slot<'a> {
        Slot {
            client: &self.client,
            server: self.server.clone(),
            group,
            id,
        }
    }

    async fn takes(&self, group: &str, id: &str) -> Outcome {
        let taken = self.slot(group, id).take().await;
        taken.with_context(|| format!("{id} gets no slot of {group}"))
    }

    async fn gives_back(&self, group: &str, id: &str) -> Outcome {
        let given = self.slot(group, id).give_back().await;
        given.with_context(|| format!("{id} gives no slot of {group} back"))
    }

    /// Why the machine gets no slot.
    async fn is_refused(&self, group: &str, id: &str) -> anyhow::Result<LockError> {
        let refused = self.slot(group, id).take().await.err();
        let refused = refused.with_context(|| format!("{id} gets a slot of {group}"))?;
        println!("{refused}");
        Ok(refused)
    }
}

async fn machines_take_turns_at_a_real_server(scratch: Scratch) -> Outcome {
    let server = Airlock::start(&scratch, &[(ONE, 1), (TWO, 2)])?;
    let machines = Machines::of(server.url());
    chapters![
        machines_take_turns(&machines),
        two_may_switch_where_the_group_has_two_slots(&machines),
        a_group_that_the_server_does_not_know_is_named(&machines),
    ]
    .await
}

/// But for the status of a refusal, which the protocol leaves open: 409 in place of 500.
async fn the_stand_in_answers_as_the_real_server(_: Scratch) -> Outcome {
    let server = FleetLockServer::start()?;
    machines_take_turns(&Machines::of(server.url())).await
}

async fn machines_take_turns(machines: &Machines) -> Outcome {
    chapters![
        a_machine_gets_the_slot_as_often_as_it_asks(machines),
        another_one_hears_why_it_waits(machines),
        whoever_has_no_slot_gives_none_back(machines),
        the_slot_goes_from_one_to_the_other(machines),
    ]
    .await
}

async fn a_machine_gets_the_slot_as_often_as_it_asks(machines: &Machines) -> Outcome {
    for _ in 0..3 {
        machines.takes(ONE, FIRST).await?;
    }
    Ok(())
}

async fn another_one_hears_why_it_waits(machines: &Machines) -> Outcome {
    let refused = machines.is_refused(ONE, SECOND).await?;
    let LockError::Refused { said, .. } = &refused else {
        anyhow::bail!("no refusal: {refused}");
    };
    ensure!(said.starts_with(": failed_lock: "), "{refused}");
    ensure!(said.contains("slots"), "{refused}");
    Ok(())
}

async fn whoever_has_no_slot_gives_none_back(machines: &Machines) -> Outcome {
    machines.gives_back(ONE, SECOND).await?;
    machines.is_refused(ONE, SECOND).await.map(drop)
}

async fn the_slot_goes_from_one_to_the_other(machines: &Machines) -> Outcome {
    for _ in 0..2 {
        machines.gives_back(ONE, FIRST).await?;
    }
    machines.takes(ONE, SECOND).await?;
    machines.is_refused(ONE, FIRST).await?;
    machines.gives_back(ONE, SECOND).await
}

async fn two_may_switch_where_the_group_has_two_slots(machines: &Machines) -> Outcome {
    machines.takes(TWO, FIRST).await?;
    machines.takes(TWO, SECOND).await?;
    machines.is_refused(TWO, THIRD).await?;
    machines.gives_back(TWO, FIRST).await?;
    machines.takes(TWO, THIRD).await
}

async fn a_group_that_the_server_does_not_know_is_named(machines: &Machines) -> Outcome {
    let refused = machines.is_refused("nobody", FIRST).await?.to_string();
    ensure!(refused.contains("nobody"), "{refused}");
    Ok(())
}

async fn a_server_in_trouble_lets_no_machine_switch(scratch: Scratch) -> Outcome {
    let mut server = Airlock::start(&scratch, &[(ONE, 1)])?;
    let machines = Machines::of(server.url());
    machines.takes(ONE, FIRST).await?;
    chapters![
        a_server_that_hangs_is_given_up(&server, &machines),
        a_server_that_is_gone_is_named(&server, &machines),
        the_slot_is_still_the_first_ones_when_the_server_is_back(&mut server, &machines),
        a_server_without_its_etcd_says_no(&server, &machines),
    ]
    .await
}

async fn a_server_that_hangs_is_given_up(server: &Airlock, machines: &Machines) -> Outcome {
    server.halt()?;
    let asked = Instant::now();
    // Not even the machine that has the slot may go by an answer of before.
    let refused = machines.is_refused(ONE, FIRST).await?;
    let took = asked.elapsed().as_secs();
    ensure!(took >= 25, "given up after {took} s");
    // By the limit on the whole question, or by the one on the silence of a connection, which is as long.
    ensure!(
        matches!(refused, LockError::Silent { .. } | LockError::Transport(_)),
        "{refused}"
    );
    Ok(())
}

async fn a_server_that_is_gone_is_named(server: &Airlock, machines: &Machines) -> Outcome {
    server.kill();
    let refused = machines.is_refused(ONE, FIRST).await?;
    let address = machines.server.trim_start_matches("http://");
    ensure!(matches!(refused, LockError::Transport(_)), "{refused}");
    ensure!(refused.to_string().contains(address), "{refused}");
    Ok(())
}

async fn the_slot_is_still_the_first_ones_when_the_server_is_back(
    server: &mut Airlock,
    machines: &Machines,
) -> Outcome {
    server.start_again()?;
    machines.is_refused(ONE, SECOND).await?;
    machines.takes(ONE, FIRST).await
}

async fn a_server_without_its_etcd_says_no(server: &Airlock, machines: &Machines) -> Outcome {
    server.end_its_etcd();
    for id in [FIRST, SECOND] {
        let refused = machines.is_refused(ONE, id).await?;
        let is_broken =
            matches!(&refused, LockError::Refused { status, .. } if status.is_server_error());
        ensure!(is_broken, "{refused}");
    }
    Ok(())
}
