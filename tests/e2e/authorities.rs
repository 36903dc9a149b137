//! A new certificate authority for a running machine, step by step, and the clients that are let in at each step.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{GetRequest, WatchOptions, WatchRequest, WatchResponse};
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ApplyConfigurationRequest, Event, EventsRequest, GenerateClientConfigurationRequest,
    MetaWriteRequest, ReadRequest, ServiceInfo, ServiceRestartRequest, UpgradeRequest,
};
use instar_pki::Role;
use instar_tests::{
    FollowedProgram, GREETER, Greeter, Identity, ImageUnderTest, Instarctl, MachineConfig, Node,
    Outcome, Parked, Registry, Release, Said, Scratch, Test, TlsClient, chapters,
    plan_with_greeter, rotate_ca, tests,
};
use prost::Message as _;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::PATIENCE;
use crate::trust::methods_that_change;

/// Earlier questions have ten seconds; the rest is for a busy host.
const STAY: Duration = Duration::from_secs(30);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_authority_takes_anothers_place_while_everything_runs,
        who_came_before_the_config_does_not_stay
    ]
}

/// Processes of the node; none may be restarted.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    generation: String,
    apid: u32,
    greeter: u32,
}

impl Running {
    async fn of(node: &Node, who: &Identity) -> Result<Self> {
        let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
        let services = machine.service_list(()).await?.into_inner().messages;
        let services: Vec<_> = services.into_iter().flat_map(|it| it.services).collect();
        Ok(Self {
            generation: generation(node, who).await?,
            apid: pid("apid", &services)?,
            greeter: pid(GREETER, &services)?,
        })
    }
}

/// Returns the number at the end of the service's last event.
fn pid(id: &str, services: &[ServiceInfo]) -> Result<u32> {
    let service = services.iter().find(|service| service.id == id);
    let events = service.and_then(|it| it.events.as_ref());
    let last = events.and_then(|events| events.events.last());
    let word = last.context("it does nothing")?.msg.rsplit(' ').next();
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("{id} does not run: {last:?}"))
}

async fn generation(node: &Node, who: &Identity) -> Result<String> {
    let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
    let path = "/proc/sys/kernel/random/boot_id".to_owned();
    let mut stream = machine.read(ReadRequest { path }).await?.into_inner();
    let data = stream.message().await?.context("an empty file")?;
    Ok(String::from_utf8(data.bytes)?)
}

const VERSION: &str = "/machine.MachineService/Version";
const APPLY: &str = "/machine.MachineService/ApplyConfiguration";
const UPGRADE: &str = "/machine.MachineService/Upgrade";

/// Begins one call of each method that the reader role may not call, each with a message that would take effect, and
/// some calls that apply this config.
async fn park_all(parked: &mut Parked, config: &str) -> Outcome {
    for (mode, dry_run) in [(Mode::Auto, true), (Mode::Try, false)] {
        parked.park(APPLY, &apply(config, mode, dry_run))?;
    }
    for method in methods_that_change()? {
        parked.park(&method, &message_that_would_do_something(&method, config))?;
    }
    // An answer to this call means that the node has all calls before it.
    parked.call(VERSION, &[]).await?.ok();
    Ok(())
}

fn message_that_would_do_something(method: &str, config: &str) -> Vec<u8> {
    let id = GREETER.to_owned();
    match method.rsplit('/').next().unwrap_or_default() {
        "ApplyConfiguration" => apply(config, Mode::NoReboot, false),
        "GenerateClientConfiguration" => certificate_of_an_administrator(),
        "MetaWrite" => value_of_a_key(),
        "ServiceRestart" | "ServiceStop" => ServiceRestartRequest { id }.encode_to_vec(),
        "Upgrade" if method == UPGRADE => upgrade_to_another_image(),
        // For Reboot, Shutdown, Reset and Rollback an empty message is valid.
        _ => Vec::new(),
    }
}

fn apply(config: &str, mode: Mode, dry_run: bool) -> Vec<u8> {
    let request = ApplyConfigurationRequest {
        data: config.as_bytes().to_vec(),
        mode: mode.into(),
        dry_run,
        ..ApplyConfigurationRequest::default()
    };
    request.encode_to_vec()
}

fn certificate_of_an_administrator() -> Vec<u8> {
    let request = GenerateClientConfigurationRequest {
        roles: vec![Role::Admin.as_str().to_owned()],
        ..GenerateClientConfigurationRequest::default()
    };
    request.encode_to_vec()
}

fn value_of_a_key() -> Vec<u8> {
    let request = MetaWriteRequest {
        key: 10,
        value: b"parked".to_vec(),
    };
    request.encode_to_vec()
}

fn upgrade_to_another_image() -> Vec<u8> {
    let request = UpgradeRequest {
        image: "10.0.2.2:1/none:v1".to_owned(),
        ..UpgradeRequest::default()
    };
    request.encode_to_vec()
}

/// Finishes the parked calls: none may be carried out.
async fn none_is_carried_out(what: &str, parked: &mut Parked) -> Outcome {
    let answers = parked.finish().await?;
    ensure!(answers.len() > 20, "{} calls", answers.len());
    for (method, answer) in &answers {
        let status = answer.as_ref().ok().and_then(|answer| answer.status);
        let is_refused = matches!(
            status,
            // The node answers an unknown method before the request is whole.
            None | Some(Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented)
        );
        ensure!(is_refused, "{what}: {method}: {answer:?}");
    }
    println!("{what}: none of {} calls was carried out", answers.len());
    Ok(())
}

/// Waits until the node refuses the caller of this connection.
async fn lost_its_standing(node: &Node, parked: &Parked) -> Outcome {
    node.wait_until("the connection's caller is refused", PATIENCE, async || {
        let said = parked.call(VERSION, &[]).await?;
        let status = said.map(|answer| answer.status);
        ensure!(
            !matches!(status, Ok(Some(Code::Ok))),
            "it is answered: {status:?}"
        );
        Ok(())
    })
    .await
}

/// Checks that the node lets this identity in, at once, on a new connection.
async fn is_let_in(node: &Node, who: &Identity) -> Outcome {
    let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
    machine.version(()).await?;
    Ok(())
}

/// A request for the config in force, whole.
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
    let third = Identity::administrator()?;
    chapters![
        a_stranger_is_not_let_in(&story),
        a_new_authority_is_accepted(&story),
        a_new_authority_takes_the_place_of_the_old_one(&story),
        the_old_authority_is_removed(&story),
        everything_has_run_on_since_the_beginning(&story, &story.new),
        talosctl_rotates_to_a_third_authority(&story, &third),
        everything_has_run_on_since_the_beginning(&story, &third),
        no_document_of_the_config_was_lost(&story, &third),
    ]
    .await
}

async fn the_old_authority_is_removed(story: &Story) -> Outcome {
    let mut begun = Begun::as_the_old_authority(story).await?;
    let marked = MachineConfig::new(&story.new).extra_name("after-the-removal");
    story.node.apply_as(&story.new, story.with(marked)).await?;
    chapters![
        calls_that_were_begun_are_not_carried_out(&story.node, &mut begun.parked),
        who_watches_as_the_old_authority_is_not_told_of_its_removal(&mut begun.configs),
        the_old_authority_does_not_get_through_the_handshake(story),
        events_for_the_old_authority_end(&mut begun.from_before),
        events_for_the_new_authority_go_on(&mut begun.of_others),
    ]
    .await
}

/// A node with a greeter, and the two authorities.
struct Story {
    node: Node,
    greeter: Greeter,
    /// The documents of its config after the first, which names the authorities.
    rest: String,
    old: Identity,
    new: Identity,
    /// The node's processes before any change.
    running: Running,
}

impl Story {
    async fn begin(scratch: &Scratch, registry: &Registry) -> Result<Self> {
        let plan = plan_with_greeter(scratch, registry, |config| config)?;
        let node = plan.blank_disk()?.boot().await?;
        node.wait_until_ready(PATIENCE).await?;
        let greeter = Greeter::of(&node)?;
        greeter.greets()?;
        let (old, new) = two_who_trust_each_other(node.identity())?;
        Ok(Self {
            running: Running::of(&node, &old).await?,
            rest: documents_after_the_first(node.config())?,
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

/// Returns administrators of the first authority and of another, each trusting both.
fn two_who_trust_each_other(first: &Identity) -> Result<(Identity, Identity)> {
    let old = first.with_role(Role::Admin)?;
    let new = Identity::administrator()?.trusting(&old);
    Ok((old.trusting(&new), new))
}

fn documents_after_the_first(config: &str) -> Result<String> {
    let documents = config.split_once("---\n");
    let (_, rest) = documents.context("a config of one document")?;
    Ok(rest.to_owned())
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

/// The old authority is still accepted.
async fn a_new_authority_takes_the_place_of_the_old_one(story: &Story) -> Outcome {
    let Story { node, old, new, .. } = story;
    let both = MachineConfig::new(new).accepting(old);
    node.apply_as(old, story.with(both)).await?;
    shows(node, new, new).await?;
    is_let_in(node, old).await
}

/// A client, and the events that it gets.
type Events = (MachineServiceClient<Channel>, Streaming<Event>);

async fn events_as(node: &Node, who: &Identity) -> Result<Events> {
    let mut client = MachineServiceClient::new(node.channel_as(who).await?);
    let events = client.events(EventsRequest::default()).await?.into_inner();
    Ok((client, events))
}

/// A client, and the configs that it gets.
type Configs = (StateClient<Channel>, Streaming<WatchResponse>);

/// Calls and streams that begin before the old authority goes.
struct Begun {
    parked: [Parked; 2],
    configs: Configs,
    from_before: Events,
    of_others: Events,
}

impl Begun {
    async fn as_the_old_authority(story: &Story) -> Result<Self> {
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

async fn all_parked_as(node: &Node, who: &Identity, config: &str) -> Result<Parked> {
    let stream = TlsClient::of(who).connect(&node.endpoint()?).await?;
    let mut calls = Parked::on(stream).await?;
    park_all(&mut calls, config).await?;
    Ok(calls)
}

async fn configs_as(node: &Node, who: &Identity) -> Result<Configs> {
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

/// Checks calls that are finished at once and calls that are finished a little later.
async fn calls_that_were_begun_are_not_carried_out(
    node: &Node,
    [at_once, later]: &mut [Parked; 2],
) -> Outcome {
    none_is_carried_out("finished at once", at_once).await?;
    lost_its_standing(node, later).await?;
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

/// The node's own checks pass with each authority, so it does not take apid to be broken.
async fn everything_has_run_on_since_the_beginning(story: &Story, who: &Identity) -> Outcome {
    let (before, after) = (&story.running, Running::of(&story.node, who).await?);
    ensure!(*before == after, "{before:?} became {after:?}");
    story.greeter.greets()
}

/// talosctl decodes and encodes the whole config at each step.
async fn talosctl_rotates_to_a_third_authority(story: &Story, third: &Identity) -> Outcome {
    let Story { node, new, .. } = story;
    rotate_ca(node, new, third, Release::V1_14).await?;
    node.wait_until("the former one is turned away", PATIENCE, async || {
        let former = new.with_role(Role::Admin)?.trusting(third);
        ensure!(is_let_in(node, &former).await.is_err());
        Ok(())
    })
    .await
}

async fn no_document_of_the_config_was_lost(story: &Story, who: &Identity) -> Outcome {
    let mut state = StateClient::new(story.node.channel_as(who).await?);
    let config = state.get(in_force()).await?.into_inner();
    let config = format!("{config:?}");
    ensure!(config.contains("ContainerHealthConfig"), "{config}");
    Ok(())
}

/// In maintenance mode anybody may apply a config. Once there is one, no client that connected before may.
async fn who_came_before_the_config_does_not_stay(scratch: Scratch) -> Outcome {
    let waiting = WaitingNode::start(&scratch)?;
    let node = &waiting.node;
    let stays = waiting.kernel_log()?;
    let mut parked = [
        calls_of_a_stranger(node).await?,
        calls_of_a_stranger(node).await?,
    ];
    chapters![
        a_machine_without_a_config_takes_one_from_anybody(&waiting),
        calls_that_were_begun_are_not_carried_out(node, &mut parked),
        the_machine_has_the_config_that_it_took(node),
        who_followed_the_log_does_not_stay(stays),
        strangers_bring_no_other_config(&waiting),
    ]
    .await
}

/// A node that waits for its config, and a client without a certificate.
struct WaitingNode {
    node: Node,
    stranger: Instarctl,
    address: String,
    /// The config's file.
    config: String,
}

impl WaitingNode {
    fn start(scratch: &Scratch) -> Result<Self> {
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity).hostname("configured");
        let config = scratch.write("config.yaml", config.to_yaml())?;
        let plan = Node::plan(scratch, &ImageUnderTest::first()?);
        let node = plan.without_config(identity).start()?;
        node.wait_for_line("machined: the API answers on port", PATIENCE)?;
        Ok(Self {
            stranger: Instarctl::of(&node, scratch)?,
            address: node.endpoint()?,
            config: config.display().to_string(),
            node,
        })
    }

    /// The arguments of a command without a certificate.
    fn insecure<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--insecure", "-n", &self.address], arguments].concat()
    }

    /// Follows the kernel log as the client without a certificate, which has seen the log's beginning.
    fn kernel_log(&self) -> Result<FollowedProgram> {
        let follow = self.insecure(&["dmesg", "--follow"]);
        let mut told = self.stranger.follow(&follow)?;
        let is_first = |line: &str| line.contains("Linux version");
        told.wait_for("the kernel's first words", PATIENCE, is_first)?;
        Ok(told)
    }

    async fn apply(&self) -> Result<Said> {
        let apply = self.insecure(&["apply-config", "--file", &self.config]);
        self.stranger.run(&apply).await
    }
}

/// A client without a certificate has begun to apply a config of its own, and to make every other call.
async fn calls_of_a_stranger(node: &Node) -> Result<Parked> {
    let hostile = MachineConfig::new(&Identity::administrator()?).hostname("hostile");
    let nobody = TlsClient::of(node.identity()).without_certificate();
    let nobody = nobody.believing_anybody();
    let mut calls = Parked::on(nobody.connect(&node.endpoint()?).await?).await?;
    park_all(&mut calls, &hostile.to_yaml()).await?;
    Ok(calls)
}

async fn a_machine_without_a_config_takes_one_from_anybody(waiting: &WaitingNode) -> Outcome {
    let said = waiting.apply().await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

async fn the_machine_has_the_config_that_it_took(node: &Node) -> Outcome {
    node.wait_for_api(PATIENCE).await?;
    let hostname = node.hostname().await?;
    ensure!(hostname == "configured", "it is called {hostname}");
    Ok(())
}

async fn who_followed_the_log_does_not_stay(stays: FollowedProgram) -> Outcome {
    stays.wait_for_end(STAY).map(drop)
}

/// The node lets nobody in without a certificate from here on.
async fn strangers_bring_no_other_config(waiting: &WaitingNode) -> Outcome {
    let refused = waiting.apply().await?;
    ensure!(refused.code != Some(0), "{refused:?}");
    Ok(())
}
