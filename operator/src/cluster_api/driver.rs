//! One call of UpdateMachine: looks, decides, carries out one step, and answers. Nothing is kept from one call to the next.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

use super::machine::Machine;
use super::registration;
use super::settings::Settings;
use super::trouble::Trouble;
use super::update::{Facts, Step, next};
use super::wanted::{Specs, Wanted};
use super::wire::{Answer, Desired, UpdateMachine};
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
    registration::check(management, &request.settings).await?;
    let settings = Settings::of_machine(&request.settings, &machine.annotations);
    let settings = settings.map_err(Trouble::Lasting)?;
    let wanted = wanted(management, &machine, &settings, &request.desired).await?;
    let workload = Workload::connect(management, &machine).await?;
    let pool = workload.pool().await?;
    let node = workload.node().await?;
    let step = next(Facts {
        wanted: &wanted,
        kubelet: kubelet(&node),
        pool: pool.as_ref(),
        limit: settings.limit,
        now: Timestamp::now(),
    });
    // Before anything begins, and before the pool that says why is gone.
    let protects = step.protects(settings.never_replace);
    machine.protect(management, protects).await?;
    let name = format!("{}/{}", named.namespace, named.name);
    let is_to_run = format!("node {} is to run {wanted}", machine.node);
    Ok(match step {
        Step::Make => {
            workload.make_pool(node, &settings, &wanted).await?;
            eprintln!("Machine {name}: {is_to_run}");
            Answer::later(is_to_run, AGAIN)
        }
        Step::Change => {
            workload.change_pool(&wanted).await?;
            eprintln!("Machine {name}: {is_to_run} now");
            Answer::later(is_to_run, AGAIN)
        }
        Step::Wait(why) => Answer::later(why, AGAIN),
        Step::Finish => {
            workload.delete_pool().await?;
            eprintln!("Machine {name}: node {} runs {wanted}", machine.node);
            Answer::finished(format!("node {} runs {wanted}", machine.node))
        }
        Step::Fail(why) => {
            eprintln!("Machine {name}: {why}");
            let node = &machine.node;
            Answer::Failure(format!("node {node} does not run {wanted}: {why}"))
        }
    })
}

/// The wanted state of a machine, as the objects in the management cluster say it. Objects that no setting needs are not read.
async fn wanted(
    management: &Client,
    machine: &Machine,
    settings: &Settings,
    types: &Desired,
) -> Result<Wanted, Trouble> {
    let infrastructure_machine = {
        let version = &types.infrastructure_machine.api_version;
        let read = machine.spec_of(management, &machine.infrastructure, version);
        read.await?
    };
    let bootstrap_config = match (&settings.config_patches, &machine.bootstrap) {
        (Some(_), Some(object)) => {
            let missing = || Trouble::Lasting("the request has no bootstrapConfig".to_owned());
            let object_type = types.bootstrap_config.as_ref().ok_or_else(missing)?;
            let read = machine.spec_of(management, object, &object_type.api_version);
            read.await?
        }
        _ => Value::Null,
    };
    let specs = Specs {
        machine: &machine.spec,
        infrastructure_machine: &infrastructure_machine,
        bootstrap_config: &bootstrap_config,
    };
    Wanted::of(settings, specs).map_err(Trouble::Lasting)
}

/// The version that a node's kubelet tells; empty while it has told none.
fn kubelet(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|it| it.node_info.as_ref());
    info.map_or("", |info| &info.kubelet_version)
}
