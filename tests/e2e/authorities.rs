//! A new certificate authority for a machine that runs, step by step, and who is let in at each.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{GetRequest, WatchOptions, WatchRequest};
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ApplyConfigurationRequest, EventsRequest, GenerateClientConfigurationRequest, MetaWriteRequest,
    ServiceRestartRequest, UpgradeRequest,
};
use instar_pki::Role;
use instar_tests::{
    GREETER, Greeter, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Parked,
    Registry, Release, Scratch, Test, TlsClient, plan_with_greeter, rotate_ca, tests,
};
use prost::Message as _;
use tonic::Code;

use crate::PATIENCE;
use crate::trust::methods_that_change;

/// What was asked before has ten seconds; the rest is for a busy host.
const STAY: Duration = Duration::from_secs(30);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_authority_takes_anothers_place_while_everything_runs,
        who_came_before_the_config_does_not_stay
    ]
}

/// What runs; nothing of it starts anew.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    generation: String,
    apid: u32,
    greeter: u32,
}

impl Running {
    async fn of(node: &Node, who: &Identity) -> anyhow::Result<Self> {
        let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
        let services = machine.service_list(()).await?.into_inner().messages;
        let services: Vec<_> = services.into_iter().flat_map(|it| it.services).collect();
        let pid = |id: &str| {
            let service = services.iter().find(|service| service.id == id);
            let events = service.and_then(|it| it.events.as_ref());
            let last = events.and_then(|events| events.events.last());
            let words = last.context("it does nothing")?.msg.rsplit(' ').next();
            words
                .and_then(|word| word.parse().ok())
                .with_context(|| format!("{id} does not run: {last:?}"))
        };
        Ok(Self {
            generation: generation(node, who).await?,
            apid: pid("apid")?,
            greeter: pid(GREETER)?,
        })
    }
}

async fn generation(node: &Node, who: &Identity) -> anyhow::Result<String> {
    let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
    let path = "/proc/sys/kernel/random/boot_id".to_owned();
    let read = instar_api::machine::ReadRequest { path };
    let mut stream = machine.read(read).await?.into_inner();
    let data = stream.message().await?.context("an empty file")?;
    Ok(String::from_utf8(data.bytes)?)
}

/// Begins one call of each method that is not for whoever only looks, each with a message that would do something, and some more that
/// apply this config.
async fn park_all(parked: &mut Parked, config: &str) -> Outcome {
    let apply = |mode: Mode, dry_run| ApplyConfigurationRequest {
        data: config.as_bytes().to_vec(),
        mode: mode.into(),
        dry_run,
        ..ApplyConfigurationRequest::default()
    };
    let method = |name: &str| format!("/machine.MachineService/{name}");
    let mut calls = vec![
        (
            method("ApplyConfiguration"),
            apply(Mode::Auto, true).encode_to_vec(),
        ),
        (
            method("ApplyConfiguration"),
            apply(Mode::Try, false).encode_to_vec(),
        ),
    ];
    for name in methods_that_change()? {
        let message = match name.rsplit('/').next().unwrap_or_default() {
            "ApplyConfiguration" => apply(Mode::NoReboot, false).encode_to_vec(),
            "GenerateClientConfiguration" => GenerateClientConfigurationRequest {
                roles: vec![Role::Admin.as_str().to_owned()],
                ..GenerateClientConfigurationRequest::default()
            }
            .encode_to_vec(),
            "MetaWrite" => MetaWriteRequest {
                key: 10,
                value: b"parked".to_vec(),
            }
            .encode_to_vec(),
            "ServiceRestart" | "ServiceStop" => ServiceRestartRequest {
                id: GREETER.to_owned(),
            }
            .encode_to_vec(),
            "Upgrade" if name.starts_with("/machine.MachineService/") => UpgradeRequest {
                image: "10.0.2.2:1/none:v1".to_owned(),
                ..UpgradeRequest::default()
            }
            .encode_to_vec(),
            // Nothing is a good message for Reboot, Shutdown, Reset, Rollback.
            _ => Vec::new(),
        };
        calls.push((name, message));
    }
    for (method, message) in calls {
        parked.park(&method, &message)?;
    }
    // All of them have come when an answer to the next has.
    parked
        .call("/machine.MachineService/Version", &[])
        .await?
        .ok();
    Ok(())
}

/// Finishes calls that were parked: none may be carried out.
async fn none_is_carried_out(what: &str, parked: &mut Parked) -> Outcome {
    let answers = parked.finish().await?;
    ensure!(answers.len() > 20, "{} calls", answers.len());
    for (method, answer) in &answers {
        let is_refused = match answer {
            Ok(answer) => matches!(
                answer.status,
                // A method that there is not is answered before the request is whole.
                None | Some(Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented)
            ),
            Err(_) => true,
        };
        ensure!(is_refused, "{what}: {method}: {answer:?}");
    }
    println!("{what}: none of {} calls was carried out", answers.len());
    Ok(())
}

/// Waits until whoever has this connection is told to be nobody any more.
async fn lost_its_standing(node: &Node, parked: &Parked) -> Outcome {
    node.wait_until("the connection's caller is refused", PATIENCE, async || {
        let said = parked.call("/machine.MachineService/Version", &[]).await?;
        let status = said.map(|answer| answer.status);
        ensure!(
            !matches!(status, Ok(Some(Code::Ok))),
            "it is answered: {status:?}"
        );
        Ok(())
    })
    .await
}

/// Whether somebody is let in, at once, on a connection of his own.
async fn is_let_in(node: &Node, who: &Identity) -> Outcome {
    let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
    machine.version(()).await?;
    Ok(())
}

/// The config in force, for a client that is shown all of it.
fn in_force() -> GetRequest {
    GetRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        id: "v1alpha1".to_owned(),
        ..Default::default()
    }
}

/// Waits until the node shows a certificate of this authority, and lets `who` in.
async fn shows(node: &Node, authority: &Identity, who: &Identity) -> Outcome {
    let only = who.with_role(Role::Admin)?.trusting_only(authority);
    node.wait_until("it shows its new certificate", PATIENCE, async || {
        is_let_in(node, &only).await
    })
    .await
}

async fn an_authority_takes_anothers_place_while_everything_runs(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = plan_with_greeter(&scratch, &registry, |config| config)?
        .blank_disk()?
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    let (_, rest) = node
        .config()
        .split_once("---\n")
        .context("a config of one document")?;
    let with = |main: MachineConfig| format!("{}---\n{rest}", main.to_yaml());

    let old = node.identity().with_role(Role::Admin)?;
    let new = Identity::administrator()?.trusting(&old);
    let old = old.trusting(&new);
    let before = Running::of(&node, &old).await?;
    ensure!(
        is_let_in(&node, &new).await.is_err(),
        "a stranger was let in"
    );

    // The new one is accepted.
    let both = MachineConfig::new(&old).accepting(&new);
    node.apply_as(&old, with(both)).await?;
    node.wait_until("the new one is let in", PATIENCE, async || {
        is_let_in(&node, &new).await
    })
    .await?;
    shows(&node, &old, &old).await?;

    // It takes the other's place, which is still accepted.
    let both = MachineConfig::new(&new).accepting(&old);
    node.apply_as(&old, with(both)).await?;
    shows(&node, &new, &new).await?;
    is_let_in(&node, &old).await?;

    // The old one goes. Whoever has it does not get through the handshake, and a connection from before ends. What was begun on it is
    // not carried out, whether it is finished at once or a little later, and nothing is told of the config that did it.
    let hostile = with(MachineConfig::new(&old).accepting(&new));
    let mut parked = Vec::new();
    for _ in 0..2 {
        let stream = TlsClient::of(&old).connect(&node.endpoint()?).await?;
        let mut calls = Parked::on(stream).await?;
        park_all(&mut calls, &hostile).await?;
        parked.push(calls);
    }
    let watch = WatchRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        options: Some(WatchOptions {
            bootstrap_contents: true,
            ..WatchOptions::default()
        }),
        ..WatchRequest::default()
    };
    let mut state = StateClient::new(node.channel_as(&old).await?);
    let mut configs = state.watch(watch).await?.into_inner();
    let mut from_before = MachineServiceClient::new(node.channel_as(&old).await?);
    let events = from_before.events(EventsRequest::default()).await?;
    let mut stays = MachineServiceClient::new(node.channel_as(&new).await?);
    let others_events = stays.events(EventsRequest::default()).await?;
    let ended = async {
        let mut events = events.into_inner();
        while let Ok(Some(_)) = events.message().await {}
    };
    let marked = MachineConfig::new(&new).extra_name("after-the-removal");
    node.apply_as(&new, with(marked)).await?;
    none_is_carried_out("finished at once", &mut parked[0]).await?;
    lost_its_standing(&node, &parked[1]).await?;
    none_is_carried_out("finished later", &mut parked[1]).await?;
    let told = async {
        let mut told = String::new();
        while let Ok(Some(message)) = configs.message().await {
            for event in message.event {
                let spec = event.resource.and_then(|it| it.spec).unwrap_or_default();
                told += &spec.yaml_spec;
            }
        }
        told
    };
    let told = tokio::time::timeout(STAY, told).await?;
    ensure!(told.contains("machine:"), "{told}");
    ensure!(!told.contains("after-the-removal"), "{told}");
    node.wait_until("the old one is turned away", PATIENCE, async || {
        ensure!(is_let_in(&node, &old).await.is_err());
        Ok(())
    })
    .await?;
    let refused = is_let_in(&node, &old).await;
    let refused = format!("{:#}", refused.err().context("it was let in")?);
    println!("{refused}");
    ensure!(!refused.contains("not authorized"), "{refused}");
    is_let_in(&node, &new).await?;
    shows(&node, &new, &new).await?;
    tokio::time::timeout(STAY, ended)
        .await
        .context("its events went on")?;
    ensure!(from_before.version(()).await.is_err(), "it is answered");
    // That of others goes on.
    let mut others_events = others_events.into_inner();
    let end = async { while let Ok(Some(_)) = others_events.message().await {} };
    ensure!(
        tokio::time::timeout(Duration::from_secs(1), end)
            .await
            .is_err(),
        "it ended as well"
    );

    // The node finds its own way in, so apid is not taken to be broken.
    let after = Running::of(&node, &new).await?;
    ensure!(before == after, "{before:?} became {after:?}");
    greeter.greets()?;

    // As talosctl does it, which decodes and encodes the whole config each time.
    let third = Identity::administrator()?;
    rotate_ca(&node, &new, &third, Release::V1_14).await?;
    node.wait_until("the former one is turned away", PATIENCE, async || {
        ensure!(
            is_let_in(&node, &new.with_role(Role::Admin)?.trusting(&third))
                .await
                .is_err()
        );
        Ok(())
    })
    .await?;
    let after = Running::of(&node, &third).await?;
    ensure!(before == after, "{before:?} became {after:?}");
    let mut state = StateClient::new(node.channel_as(&third).await?);
    let config = state.get(in_force()).await?.into_inner();
    let config = format!("{config:?}");
    ensure!(config.contains("ContainerHealthConfig"), "{config}");
    greeter.greets()
}

/// In maintenance mode everybody may bring a config. Once there is one, nobody who connected before may.
async fn who_came_before_the_config_does_not_stay(scratch: Scratch) -> Outcome {
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity).hostname("configured");
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(identity)
        .start()?;
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    let client = Instarctl::of(&node, &scratch)?;
    let address = node.endpoint()?;
    let insecure = ["--insecure", "-n", &address];
    let file = scratch.write("config.yaml", config.to_yaml())?;
    let file = file.display().to_string();

    let mut stays = client.follow(&[&insecure[..], &["dmesg", "--follow"]].concat())?;
    stays.wait_for("the kernel's first words", PATIENCE, |line| {
        line.contains("Linux version")
    })?;
    // Somebody else has begun to bring one of his own, and all else that there is.
    let hostile = MachineConfig::new(&Identity::administrator()?).hostname("hostile");
    let mut parked = Vec::new();
    for _ in 0..2 {
        let nobody = TlsClient::of(node.identity()).without_certificate();
        let stream = nobody.believing_anybody().connect(&address).await?;
        let mut calls = Parked::on(stream).await?;
        park_all(&mut calls, &hostile.to_yaml()).await?;
        parked.push(calls);
    }
    let apply = [&insecure[..], &["apply-config", "--file", &file]].concat();
    let said = client.run(&apply).await?;
    ensure!(said.code == Some(0), "{said:?}");
    none_is_carried_out("finished at once", &mut parked[0]).await?;
    lost_its_standing(&node, &parked[1]).await?;
    none_is_carried_out("finished later", &mut parked[1]).await?;
    node.wait_for_api(PATIENCE).await?;
    let hostname = node.hostname().await?;
    ensure!(hostname == "configured", "it is called {hostname}");
    stays.wait_for_end(STAY)?;
    // Nobody comes in without a certificate from here on.
    let refused = client.run(&apply).await?;
    ensure!(refused.code != Some(0), "{refused:?}");
    Ok(())
}
