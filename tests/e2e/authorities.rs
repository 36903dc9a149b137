//! A new certificate authority for a machine that runs, step by step, and who is let in at each.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{GetRequest, WatchOptions, WatchRequest, WatchResponse};
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ApplyConfigurationRequest, Event, EventsRequest, GenerateClientConfigurationRequest,
    MetaWriteRequest, ServiceRestartRequest, UpgradeRequest,
};
use instar_pki::Role;
use instar_tests::{
    GREETER, Greeter, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Parked,
    Registry, Release, Scratch, Test, TlsClient, plan_with_greeter, rotate_ca, tests,
};
use prost::Message as _;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

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
    let story = Story::begin(&scratch, &registry).await?;
    a_stranger_is_not_let_in(&story).await?;
    a_new_authority_is_accepted(&story).await?;
    a_new_authority_takes_the_place_of_the_old_one(&story).await?;
    let mut begun = Begun::as_the_old_authority(&story).await?;
    let marked = MachineConfig::new(&story.new).extra_name("after-the-removal");
    story.node.apply_as(&story.new, story.with(marked)).await?;
    calls_that_the_old_authority_began_are_not_carried_out(&story, &mut begun.parked).await?;
    who_watches_as_the_old_authority_is_not_told_of_its_removal(&mut begun.configs).await?;
    the_old_authority_does_not_get_through_the_handshake(&story).await?;
    events_for_the_old_authority_end(&mut begun.from_before).await?;
    events_for_the_new_authority_go_on(&mut begun.of_others).await?;
    everything_has_run_on_since_the_beginning(&story, &story.new).await?;
    story.greeter.greets()?;
    let third = talosctl_rotates_to_a_third_authority(&story).await?;
    everything_has_run_on_since_the_beginning(&story, &third).await?;
    no_document_of_the_config_was_lost(&story, &third).await?;
    story.greeter.greets()
}

/// A node with a greeter, and the two authorities.
struct Story {
    node: Node,
    greeter: Greeter,
    /// The documents of its config after the first, which names the authorities.
    rest: String,
    old: Identity,
    new: Identity,
    /// Before anything changed.
    running: Running,
}

impl Story {
    async fn begin(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Self> {
        let node = plan_with_greeter(scratch, registry, |config| config)?
            .blank_disk()?
            .boot()
            .await?;
        node.wait_until_ready(PATIENCE).await?;
        let greeter = Greeter::of(&node)?;
        greeter.greets()?;
        let documents = node.config().split_once("---\n");
        let (_, rest) = documents.context("a config of one document")?;
        let old = node.identity().with_role(Role::Admin)?;
        let new = Identity::administrator()?.trusting(&old);
        let old = old.trusting(&new);
        Ok(Self {
            running: Running::of(&node, &old).await?,
            rest: rest.to_owned(),
            node,
            greeter,
            old,
            new,
        })
    }

    /// The node's config with another first document.
    fn with(&self, main: MachineConfig) -> String {
        format!("{}---\n{}", main.to_yaml(), self.rest)
    }
}

async fn a_stranger_is_not_let_in(story: &Story) -> Outcome {
    let let_in = is_let_in(&story.node, &story.new).await;
    ensure!(let_in.is_err(), "a stranger was let in");
    Ok(())
}

async fn a_new_authority_is_accepted(story: &Story) -> Outcome {
    let Story { node, old, new, .. } = story;
    let both = MachineConfig::new(old).accepting(new);
    node.apply_as(old, story.with(both)).await?;
    node.wait_until("the new one is let in", PATIENCE, async || {
        is_let_in(node, new).await
    })
    .await?;
    shows(node, old, old).await
}

/// Which is still accepted.
async fn a_new_authority_takes_the_place_of_the_old_one(story: &Story) -> Outcome {
    let Story { node, old, new, .. } = story;
    let both = MachineConfig::new(new).accepting(old);
    node.apply_as(old, story.with(both)).await?;
    shows(node, new, new).await?;
    is_let_in(node, old).await
}

/// Somebody's client, and the events that it is told.
type Events = (MachineServiceClient<Channel>, Streaming<Event>);

async fn events_as(node: &Node, who: &Identity) -> anyhow::Result<Events> {
    let mut client = MachineServiceClient::new(node.channel_as(who).await?);
    let events = client.events(EventsRequest::default()).await?.into_inner();
    Ok((client, events))
}

/// Somebody's client, and the configs that it is told.
type Configs = (StateClient<Channel>, Streaming<WatchResponse>);

/// What was begun before the old authority goes.
struct Begun {
    parked: [Parked; 2],
    configs: Configs,
    from_before: Events,
    of_others: Events,
}

impl Begun {
    async fn as_the_old_authority(story: &Story) -> anyhow::Result<Self> {
        let Story { node, old, new, .. } = story;
        let hostile = story.with(MachineConfig::new(old).accepting(new));
        Ok(Self {
            parked: [
                all_parked_as(node, old, &hostile).await?,
                all_parked_as(node, old, &hostile).await?,
            ],
            configs: configs_as(node, old).await?,
            from_before: events_as(node, old).await?,
            of_others: events_as(node, new).await?,
        })
    }
}

async fn all_parked_as(node: &Node, who: &Identity, config: &str) -> anyhow::Result<Parked> {
    let stream = TlsClient::of(who).connect(&node.endpoint()?).await?;
    let mut calls = Parked::on(stream).await?;
    park_all(&mut calls, config).await?;
    Ok(calls)
}

async fn configs_as(node: &Node, who: &Identity) -> anyhow::Result<Configs> {
    let watch = WatchRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        options: Some(WatchOptions {
            bootstrap_contents: true,
            ..WatchOptions::default()
        }),
        ..WatchRequest::default()
    };
    let mut client = StateClient::new(node.channel_as(who).await?);
    let configs = client.watch(watch).await?.into_inner();
    Ok((client, configs))
}

/// Whether they are finished at once or a little later.
async fn calls_that_the_old_authority_began_are_not_carried_out(
    story: &Story,
    [at_once, later]: &mut [Parked; 2],
) -> Outcome {
    none_is_carried_out("finished at once", at_once).await?;
    lost_its_standing(&story.node, later).await?;
    none_is_carried_out("finished later", later).await
}

async fn who_watches_as_the_old_authority_is_not_told_of_its_removal(
    (_, configs): &mut Configs,
) -> Outcome {
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
    Ok(())
}

async fn the_old_authority_does_not_get_through_the_handshake(story: &Story) -> Outcome {
    let Story { node, old, new, .. } = story;
    node.wait_until("the old one is turned away", PATIENCE, async || {
        ensure!(is_let_in(node, old).await.is_err());
        Ok(())
    })
    .await?;
    let refused = is_let_in(node, old).await;
    let refused = format!("{:#}", refused.err().context("it was let in")?);
    println!("{refused}");
    ensure!(!refused.contains("not authorized"), "{refused}");
    is_let_in(node, new).await?;
    shows(node, new, new).await
}

async fn events_for_the_old_authority_end((client, events): &mut Events) -> Outcome {
    let ended = async { while let Ok(Some(_)) = events.message().await {} };
    tokio::time::timeout(STAY, ended)
        .await
        .context("its events went on")?;
    ensure!(client.version(()).await.is_err(), "it is answered");
    Ok(())
}

async fn events_for_the_new_authority_go_on((_, events): &mut Events) -> Outcome {
    let end = async { while let Ok(Some(_)) = events.message().await {} };
    let ended = tokio::time::timeout(Duration::from_secs(1), end).await;
    ensure!(ended.is_err(), "it ended as well");
    Ok(())
}

/// The node finds its own way in with each authority, so apid is not taken to be broken.
async fn everything_has_run_on_since_the_beginning(story: &Story, who: &Identity) -> Outcome {
    let (before, after) = (&story.running, Running::of(&story.node, who).await?);
    ensure!(*before == after, "{before:?} became {after:?}");
    Ok(())
}

/// It decodes and encodes the whole config each time.
async fn talosctl_rotates_to_a_third_authority(story: &Story) -> anyhow::Result<Identity> {
    let Story { node, new, .. } = story;
    let third = Identity::administrator()?;
    rotate_ca(node, new, &third, Release::V1_14).await?;
    node.wait_until("the former one is turned away", PATIENCE, async || {
        let former = new.with_role(Role::Admin)?.trusting(&third);
        ensure!(is_let_in(node, &former).await.is_err());
        Ok(())
    })
    .await?;
    Ok(third)
}

async fn no_document_of_the_config_was_lost(story: &Story, who: &Identity) -> Outcome {
    let mut state = StateClient::new(story.node.channel_as(who).await?);
    let config = state.get(in_force()).await?.into_inner();
    let config = format!("{config:?}");
    ensure!(config.contains("ContainerHealthConfig"), "{config}");
    Ok(())
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
