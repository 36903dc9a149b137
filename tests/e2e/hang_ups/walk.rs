//! The node of the walk, and the states that it may be in after a caller has hung up.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use instar_api::machine as wire;
use instar_api::machine::apply_configuration_request::Mode;
use instar_qemu::{DiskFormat, Drive, VmSpec, create_blank_disk};
use instar_tests::{
    GREETER, HangUp, Identity, ImageUnderTest, ImpatientCaller, Instarctl, MachineConfig, Node,
    OciImage, Outcome, Registry, Scratch, push_greeter, uefi,
};
use prost::Message;
use tonic::Code;

use super::calls::{Call, millis};
use super::seen::{Seen, is_free};
use super::{LIMIT, SLOW, slow};
use crate::PATIENCE;

/// The node of the walk.
pub(super) struct Walk {
    pub(super) node: Node,
    pub(super) registry: Registry,
    pub(super) random: fastrand::Rng,
    connection: Option<ImpatientCaller>,
    pub(super) hung_up: usize,
    pub(super) seen: Seen,
    /// Versions that a boot may start beside the running one: they were staged, or may have been.
    pub(super) staged_versions: BTreeSet<String>,
    pub(super) staged_configs: BTreeSet<String>,
    /// Whether a pull may be under way, so that an image can appear at any moment.
    is_pulling: bool,
}

/// Status and message of an answer that arrived before the caller hung up.
type Answer = Option<(Code, String)>;

/// Names of the two configs: `walk-a` has the greeter alone, `walk-b` the slow one as well.
pub(super) fn config(identity: &Identity, host: &str, name: &str) -> String {
    let config = MachineConfig::new(identity)
        .hostname(name)
        .install_disk("/dev/vda")
        .registry(host)
        .greeter(host);
    match name {
        "walk-b" => slow(config, host, SLOW, 2).to_yaml(),
        _ => config.to_yaml(),
    }
}

/// Prints the seed, so that the walk can be repeated.
fn random() -> anyhow::Result<fastrand::Rng> {
    let seed = match std::env::var("INSTAR_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => fastrand::u64(..),
    };
    println!("seed: INSTAR_SEED={seed}");
    Ok(fastrand::Rng::with_seed(seed))
}

/// A registry with the installers, the containers' image, and one more.
fn registry_with_all_images(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::with_both_installers(scratch)?;
    push_greeter(&registry)?;
    let pulled = OciImage::starting(&["/nothing"]).files(&[("nothing", &[7; 300_000])])?;
    pulled.push(&registry, "pulled", "v1")?;
    Ok(registry)
}

/// A machine that boots from one disk and has another to wipe.
fn machine(scratch: &Scratch) -> anyhow::Result<VmSpec> {
    let (disk, spare) = (scratch.join("disk.img"), scratch.join("spare.img"));
    ImageUnderTest::first()?.put_on_disk(&disk, 2 << 30)?;
    create_blank_disk(&spare, DiskFormat::Raw, 64 << 20)?;
    Ok(VmSpec::uefi(uefi()?)
        .drive(Drive::raw(&disk))
        .drive(Drive::raw(&spare))
        .deadline(Duration::from_secs(2400)))
}

/// Boots the node and applies its config.
async fn start(scratch: &Scratch, host: &str) -> anyhow::Result<Node> {
    let identity = Identity::administrator()?;
    let first = config(&identity, host, "walk-a");
    let file = scratch.write("first.yaml", &first)?.display().to_string();
    let node = Node::plan_from(scratch, machine(scratch)?)
        .without_config(identity)
        .start()?;
    node.wait_for_line("no machine config: maintenance mode", LIMIT)?;
    node.wait_for_line("the API answers on port", LIMIT)?;
    let client = Instarctl::of(&node, scratch)?;
    client.bring_first_config(&node, &file, PATIENCE).await?;
    node.wait_until_ready(LIMIT).await?;
    Ok(node)
}

impl Walk {
    pub(super) async fn begin(scratch: &Scratch) -> anyhow::Result<Self> {
        let (random, registry) = (random()?, registry_with_all_images(scratch)?);
        let node = start(scratch, &registry.host_for_guest()).await?;
        Ok(Self {
            seen: Seen::of(&node).await?,
            node,
            registry,
            random,
            connection: None,
            hung_up: 0,
            staged_versions: BTreeSet::new(),
            staged_configs: BTreeSet::new(),
            is_pulling: false,
        })
    }

    /// The image that is pulled and removed.
    pub(super) fn pulled(&self) -> String {
        self.registry.image_for_guest("pulled:v1")
    }

    /// Hangs up on a call, and checks that the machine is as before the call, or as after it.
    pub(super) async fn hang_up(&mut self, call: Call) -> Outcome {
        let how = match self.random.bool() {
            true => HangUp::Call,
            false => HangUp::Connection,
        };
        let moment = call.within.mul_f64(self.random.f64());
        let answer = self.call_and_hang_up(&call, moment, how).await?;
        let (method, after) = (call.method, moment.as_millis());
        let story = format!("{method} ({how:?} after {after} ms): {answer:?}");
        println!("{story}");
        self.count(method, answer)?;
        // The call may take as long on its way to machined as the next question.
        tokio::time::sleep(millis(300)).await;
        self.notice_pull(&call);
        self.seen = self.as_before_or_as_after(call).await.context(story)?;
        Ok(())
    }

    async fn call_and_hang_up(
        &mut self,
        call: &Call,
        moment: Duration,
        how: HangUp,
    ) -> anyhow::Result<Answer> {
        let mut connection = self.connected().await?;
        let method = format!("/{}", call.method);
        let answer = connection.call(&method, &call.message, moment, how).await?;
        if !(answer.is_none() && how == HangUp::Connection) {
            self.connection = Some(connection);
        }
        Ok(answer)
    }

    /// Returns the connection of the call before if it still works, or a new one.
    async fn connected(&mut self) -> anyhow::Result<ImpatientCaller> {
        match self.connection.take() {
            Some(connection) if connection.is_connected() => Ok(connection),
            _ => {
                let node = &self.node;
                node.wait_until("somebody connects", PATIENCE, async || {
                    ImpatientCaller::connect(node).await
                })
                .await
            }
        }
    }

    /// Counts an answer. A failure inside the machine ends the walk.
    fn count(&mut self, method: &str, answer: Answer) -> Outcome {
        match answer {
            None => self.hung_up += 1,
            Some((Code::Internal | Code::Unknown, why)) => bail!("{method}: {why}"),
            Some(_) => {}
        }
        Ok(())
    }

    /// Notes that a pull has begun: it goes on beside all other calls.
    fn notice_pull(&mut self, call: &Call) {
        let pulled = self.pulled();
        let (before, after) = (&self.seen.images, &call.after.images);
        self.is_pulling |= after.contains(&pulled) && !before.contains(&pulled);
    }

    async fn as_before_or_as_after(&self, call: Call) -> anyhow::Result<Seen> {
        let node = &self.node;
        node.wait_until("it is as before or as after", LIMIT, async || {
            is_free(&node.kept_channel().await?).await?;
            let seen = Seen::of(node).await?;
            let [before, after] = [&self.seen, &call.after]
                .map(|expected| self.as_it_may_be(&call, expected.clone(), &seen));
            ensure!(
                before == seen || after == seen,
                "before: {before:#?}\nafter: {after:#?}\nnow: {seen:#?}"
            );
            Ok(seen)
        })
        .await
    }

    /// Adds to the expected state whatever changes by itself: the image that is pulled, and the version that a boot
    /// starts.
    fn as_it_may_be(&self, call: &Call, mut expected: Seen, seen: &Seen) -> Seen {
        let pulled = self.pulled();
        if self.is_pulling && seen.images.contains(&pulled) {
            expected.images.insert(pulled);
        }
        let is_other_kernel = call.reboots && seen.kernel != self.seen.kernel;
        match is_other_kernel || seen.version != self.seen.version {
            true => self.after_a_start(expected, seen),
            false => expected,
        }
    }

    /// The expected state after a boot, or as another generation.
    fn after_a_start(&self, mut expected: Seen, seen: &Seen) -> Seen {
        expected.kernel.clone_from(&seen.kernel);
        if self.staged_versions.contains(&seen.version) {
            expected.version.clone_from(&seen.version);
        }
        if self.staged_configs.contains(&seen.config) && seen.config != expected.config {
            expected = expected.with_config(&seen.config);
        }
        // A boot starts services that were stopped by hand.
        for (name, up) in &mut expected.services {
            *up = seen.services.get(name) == Some(&true);
        }
        expected
    }

    /// Makes the config in force the one on STATE, and waits until every container is up.
    pub(super) async fn settle(&mut self) -> Outcome {
        let call = self.apply(&self.seen.config, Mode::NoReboot, 0);
        let request = wire::ApplyConfigurationRequest::decode(call.message.as_slice())?;
        let mut machine = self.node.machine().await?;
        machine.apply_configuration(request).await?;
        let id = GREETER.to_owned();
        let start = wire::ServiceStartRequest { id };
        machine.service_start(start).await?;
        self.staged_configs.clear();
        self.is_pulling = false;
        self.node.wait_until_ready(PATIENCE).await?;
        self.seen = self.with_all_up().await?;
        Ok(())
    }

    async fn with_all_up(&self) -> anyhow::Result<Seen> {
        let node = &self.node;
        node.wait_until("all is up", PATIENCE, async || {
            let seen = Seen::of(node).await?;
            ensure!(seen.services.values().all(|up| *up), "{seen:?}");
            Ok(seen)
        })
        .await
    }
}
