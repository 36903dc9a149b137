//! One call of UpdateMachine: looks, decides, carries out one step, and answers. Nothing is kept from one call to the next.

use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use super::machine::Machine;
use super::settings::Settings;
use super::trouble::Trouble;
use super::update::{Facts, Step, next};
use super::wire::{Answer, UpdateMachine};
use super::workload::Workload;

/// Timeout of one call, below the time that the handler has by Discovery's answer.
const CALL: Duration = Duration::from_secs(15);
/// The pause before the manager calls again, in seconds.
const AGAIN: u32 = 5;

/// Takes the update of a machine one step further.
pub(super) async fn update(management: &Client, request: UpdateMachine) -> Answer {
    let metadata = &request.desired.machine.metadata;
    let name = format!("{}/{}", metadata.namespace, metadata.name);
    let late = |_| {
        let why = format!("no end within {} s", CALL.as_secs());
        Trouble::Passing(why)
    };
    let driven = timeout(CALL, drive(management, &request)).await;
    match driven.map_err(late).flatten() {
        Ok(answer) => answer,
        Err(Trouble::Passing(why)) => {
            eprintln!("Machine {name}: {why}");
            Answer::later(why, AGAIN)
        }
        Err(Trouble::Lasting(why)) => {
            eprintln!("Machine {name}: {why}");
            Answer::Failure(why)
        }
    }
}

async fn drive(management: &Client, request: &UpdateMachine) -> Result<Answer, Trouble> {
    let named = &request.desired.machine.metadata;
    let machine = Machine::read(management, &named.namespace, &named.name).await?;
    let settings = Settings::of_machine(&request.settings, &machine.annotations);
    let settings = settings.map_err(Trouble::Lasting)?;
    let api_version = &request.desired.infrastructure_machine.api_version;
    let image = machine.os_image(management, api_version, &settings.os_image);
    let image = image.await?;
    let workload = Workload::connect(management, &machine).await?;
    let pool = workload.pool().await?;
    let step = next(Facts {
        image: &image,
        pool: pool.as_ref(),
    });
    // Before anything begins, and before the pool that says why is gone.
    let protects = step.protects(settings.never_replace);
    machine.protect(management, protects).await?;
    let name = format!("{}/{}", named.namespace, named.name);
    Ok(match step {
        Step::Make => {
            workload.make_pool(&settings, &image).await?;
            eprintln!("Machine {name}: node {} is to run {image}", machine.node);
            Answer::later(format!("node {} is to run {image}", machine.node), AGAIN)
        }
        Step::Rename => {
            workload.rename(&image).await?;
            eprintln!(
                "Machine {name}: node {} is to run {image} now",
                machine.node
            );
            Answer::later(format!("node {} is to run {image}", machine.node), AGAIN)
        }
        Step::Wait(why) => Answer::later(why, AGAIN),
        Step::Finish => {
            workload.delete_pool().await?;
            eprintln!("Machine {name}: node {} runs {image}", machine.node);
            Answer::finished(format!("node {} runs {image}", machine.node))
        }
        Step::Fail(why) => {
            eprintln!("Machine {name}: {why}");
            Answer::Failure(format!("node {} does not run {image}: {why}", machine.node))
        }
    })
}
