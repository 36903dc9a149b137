//! A container as a service: pulls and unpacks its image, has crun start its process, watches the process and adopts it.

mod output;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal as PosixSignal;

use self::output::Output;
use super::cgroup::Cgroup;
use super::log_ring::LogRing;
use super::workload::{Adopted, Running, Signal, Step, Workload};
use crate::base::Exit;
use crate::base::lock::Lock as _;
use crate::containers::{
    ContainerSpec, Described, Held, HostView, Identity, ImageDigests, ImagesInForce, Record,
    RunningContainer, Runtime, Streams, check_tag, keepable, mounts_are_keepable,
};
use crate::init_link::{InitLink, Scope};
use crate::oci::{ImageConfig, ImageStore, Limits, PulledImage, Puller, VerifiedImage};
use crate::values::{Digest, ImageReference};

/// Runs a container, again and again.
pub struct ContainerWorkload {
    /// The container's spec.
    pub spec: ContainerSpec,
    /// Its image.
    pub image: ImageReference,
    /// Returns the puller of images of the machine config in force, which knows its rules for images; called at each use of an image.
    pub puller: Box<dyn Fn() -> Arc<Puller> + Send + Sync>,
    /// The store of images.
    pub images: ImageStore,
    /// The time that it has to end after SIGTERM; called at each stop.
    pub stop_timeout: Box<dyn Fn() -> Duration + Send + Sync>,
    /// The images that containers run.
    pub in_force: ImagesInForce,
    /// The runtime that makes containers.
    pub runtime: Runtime,
    /// Says how its process ended, and keeps the pipe of its output over a restart of machined.
    pub init: InitLink,
    /// The pipe of its output; at first that of an earlier machined.
    pub kept_output: Mutex<Option<OwnedFd>>,
    /// The reading of that pipe while nobody looks after the container.
    pub unattended: Mutex<Option<Unattended>>,
    /// The cgroup of its processes; chosen anew at each start.
    pub cgroup: Mutex<Cgroup>,
    /// Whether the config lets it live through a change of generations; called at each start.
    pub keeps: Box<dyn Fn() -> bool + Send + Sync>,
    /// The image for the start that is under way.
    pub prepared: Mutex<Option<VerifiedImage>>,
    /// The image of which it was told last that it had been damaged, and is whole again.
    pub told_whole: Mutex<Option<Digest>>,
}

/// The reading of the output of a container that nobody looks after yet.
pub struct Unattended(Output);

/// Bytes of a pipe: the output of a talkative program in a second.
const PIPE: usize = 256 << 10;
/// Time limit for a registry to resolve a name, if an image is here that can be used instead.
const LOOK_UP: Duration = Duration::from_secs(10);
/// Time limit for init's report of an exit, which follows at once.
const RIGHT_BEHIND: Duration = Duration::from_secs(5);
/// The longest name that init keeps a descriptor under (`FdName` of its protocol).
const LONGEST_KEPT_NAME: usize = 32;

/// Returns the name under which init keeps a service's output. A name that is too long becomes its digest, with another prefix, so that it
/// cannot equal the name of another service.
pub fn output_name(service: &str) -> String {
    let name = format!("log.{service}");
    if name.len() <= LONGEST_KEPT_NAME {
        return name;
    }
    let mut name = format!("log-{}", blake3::hash(service.as_bytes()).to_hex());
    name.truncate(LONGEST_KEPT_NAME);
    name
}

impl ContainerWorkload {
    /// Returns the image in force, if the rules allow it; without one, resolves the name and pulls.
    async fn image_to_run(&self) -> anyhow::Result<VerifiedImage> {
        let name = self.spec.name.as_str();
        let Some(known) = self.in_force.image(name, &self.image) else {
            return self.look_up(None).await;
        };
        let puller = (self.puller)();
        let own = self.name_of(known.digest);
        let whole = puller.whole(&own, known.digest, &self.images);
        if let Some(image) = whole.await? {
            let known = ImageDigests::of_pulled(&image, Some(known));
            self.in_force.note_index(name, &self.image, known).await;
            return self.admit(image).await;
        }
        // The image was lost with /var, or is damaged: pull the same image again, whatever the name means by now.
        let same = self.image.at(known.digest);
        let pulled = async {
            let resolved = known.resolve(&puller, &own).await?;
            let verified = puller.verify(resolved).await?;
            puller
                .pull(&verified, &self.images, &Limits::default())
                .await
        };
        pulled.await.with_context(|| match self.images.damage(known.digest) {
            None => format!("pull {same}, which {} meant; a restart of {name} by its operator looks the name up again", self.image),
            Some(how) => format!(
                "the image {same} was damaged on the disk ({how}) and is put aside; it cannot be made again from its blobs, and no registry \
                 gives it: bring it by its registry or a mirror, by a bundle (instarctl bundle upload) or from another node (instarctl bundle \
                 fetch), and {name} starts by itself; a restart of {name} by its operator looks the name up again"
            ),
        })
    }

    /// Says once of an image that it was damaged and is whole again.
    fn told_whole_again(&self) -> Option<String> {
        let digest = self.lock_prepared().as_ref()?.digest();
        let how = self.images.damage(digest)?;
        let is_new = self.told_whole.locked().replace(digest) != Some(digest);
        is_new.then(|| {
            format!("its image {digest} was damaged on the disk ({how}), and was made anew by the same digest")
        })
    }

    /// Returns the name under which an image is made or pulled again: that of the config, by which lists of images show it, unless another
    /// image has it by now.
    fn name_of(&self, digest: Digest) -> ImageReference {
        let named = self.images.find(&self.image);
        match named.is_some_and(|named| named.digest() != digest) {
            true => self.image.at(digest),
            false => self.image.clone(),
        }
    }

    /// Resolves the image's name anew and puts the result in force. If the registry is unreachable, or what it has contradicts its tag, an
    /// image that is here is used, the one of this name first, then `running`; any other failure is an error.
    async fn look_up(&self, running: Option<PulledImage>) -> anyhow::Result<VerifiedImage> {
        // The name may mean a newer image than the one that runs: a bundle or a pull has brought it.
        let here = self.images.find(&self.image).or(running);
        let here = match here {
            Some(here) => {
                let puller = (self.puller)();
                let whole = puller.whole(&self.image, here.digest(), &self.images);
                whole.await?
            }
            None => None,
        };
        let (image, digests) = match here {
            // A digest always means the same image.
            Some(image) if self.image.digest().is_some() => {
                let image = self.admit(image).await?;
                let digests = ImageDigests::of_pulled(&image, None);
                (image, digests)
            }
            here => self.ask_registry(here).await?,
        };
        let name = self.spec.name.as_str();
        self.in_force.set(name, &self.image, digests).await;
        Ok(image)
    }

    /// Admits an image of the store as the rules in force say.
    async fn admit(&self, image: PulledImage) -> anyhow::Result<VerifiedImage> {
        let in_force = self.in_force.image(self.spec.name.as_str(), &self.image);
        let digests = ImageDigests::of_pulled(&image, in_force);
        let puller = (self.puller)();
        let admitted = digests.admit(&puller, &self.image, image, &self.images);
        Ok(admitted.await?)
    }

    /// Returns the image that the name means, and its digests; `here` is used if the registry is away, or if what the name means is held.
    async fn ask_registry(
        &self,
        here: Option<PulledImage>,
    ) -> anyhow::Result<(VerifiedImage, ImageDigests)> {
        let puller = (self.puller)();
        let resolving = puller.look_up(&self.image);
        let resolved = match &here {
            Some(_) => tokio::time::timeout(LOOK_UP, resolving).await,
            None => Ok(resolving.await),
        };
        let pulled = match resolved {
            Ok(Ok(resolved)) => match self.check_tag(resolved.digest(), &resolved.config) {
                Ok(()) => {
                    let digests = ImageDigests::of_resolved(&resolved);
                    let limits = Limits::default();
                    let pulled = puller.pull(&resolved, &self.images, &limits).await;
                    pulled.map(|image| (image, digests))
                }
                Err(held) => return self.run_instead(&puller, here, held.into()),
            },
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let late = anyhow::anyhow!("no answer within {} s", LOOK_UP.as_secs());
                return self.run_instead(&puller, here, late.context("its registry is away"));
            }
        };
        match pulled {
            Err(error) if error.is_unreachable() => {
                let away = anyhow::Error::from(error).context("its registry is away");
                self.run_instead(&puller, here, away)
            }
            pulled => pulled.with_context(|| format!("pull {}", self.image)),
        }
    }

    /// Returns the image that is here, in the place of the one that the name means.
    fn run_instead(
        &self,
        puller: &Puller,
        here: Option<PulledImage>,
        why: anyhow::Error,
    ) -> anyhow::Result<(VerifiedImage, ImageDigests)> {
        let Some(here) = here else {
            return Err(why.context(format!("pull {}", self.image)));
        };
        self.check_tag(here.digest(), here.config())?;
        tracing::warn!(
            "{}: {} is used, which is here: {why:#}",
            self.image,
            here.digest()
        );
        let digests = ImageDigests::of_pulled(&here, None);
        Ok((puller.policy().admit(&self.image, here)?, digests))
    }

    /// Checks that an image does not contradict the tag in its name, unless it is in force: then it has run here by this name.
    fn check_tag(&self, digest: Digest, config: &ImageConfig) -> Result<(), Box<Held>> {
        match self.in_force.get(self.spec.name.as_str(), &self.image) {
            Some(in_force) if in_force == digest => Ok(()),
            _ => check_tag(&self.image, digest, config),
        }
    }

    async fn prepare_image(&self) -> anyhow::Result<()> {
        let image = self.image_to_run().await?;
        *self.lock_prepared() = Some(image);
        Ok(())
    }

    /// Pulls the image for a restart by an operator. The running container goes on meanwhile, and also if this fails.
    async fn renew_image(&self) -> anyhow::Result<()> {
        let in_force = self.in_force.get(self.spec.name.as_str(), &self.image);
        let running = in_force.and_then(|digest| self.images.get(digest));
        self.look_up(running).await.map(drop)
    }

    fn lock_prepared(&self) -> MutexGuard<'_, Option<VerifiedImage>> {
        self.prepared.locked()
    }

    async fn run(&self, log: LogRing) -> anyhow::Result<Box<dyn Running>> {
        let image = self.lock_prepared().take();
        let image = image.context("no image was prepared")?;
        // The rules may have changed since.
        let policy = (self.puller)();
        let image = policy.policy().admit(&self.image, image.into_inner())?;
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .context("make the output's pipe")?;
        // Output waits in the pipe while generations change.
        if let Err(error) = rustix::pipe::fcntl_setpipe_size(&read, PIPE) {
            tracing::debug!("the output's pipe keeps its usual size: {error}");
        }
        let name = output_name(self.spec.name.as_str());
        let cgroup = self.choose_cgroup().await?;
        let scope = match cgroup.outlives_generation() {
            true => Scope::Workloads,
            false => Scope::Generation,
        };
        self.init
            .keep(&name, scope, &read)
            .await
            .context("have init keep the output's pipe")?;
        *self.kept_output.locked() = Some(read.try_clone()?);
        let output = Output::follow(read, log)?;
        let streams = Streams {
            stdout: write.try_clone()?,
            stderr: write,
        };
        let host = HostView::of_this_machine();
        let spec = self.placed();
        let running = self
            .runtime
            .start(&spec, &image, &self.images, &host, streams, &[])
            .await?;
        if let Err(error) = self.note_identity(&spec, &image) {
            tracing::warn!("{} cannot be taken over later: {error:#}", self.spec.name);
        }
        Ok(self.running(running, image.into_inner(), Some(output)))
    }

    /// Chooses the cgroup for a start: the mounts and the strategy may be others than at the last one. Nothing of an earlier run is left then.
    async fn choose_cgroup(&self) -> anyhow::Result<Cgroup> {
        let name = self.spec.name.as_str();
        // Two containers on one layer would destroy it without an error.
        for outlives_generation in [true, false] {
            let cgroup = Cgroup::for_container(name, outlives_generation)?;
            cgroup.empty().await?;
        }
        let cgroup = Cgroup::for_container(name, (self.keeps)() && keepable(&self.spec).is_ok())?;
        cgroup.prepare_for_container()?;
        *self.cgroup.locked() = cgroup.clone();
        Ok(cgroup)
    }

    /// Returns the spec with the cgroup of the container.
    fn placed(&self) -> ContainerSpec {
        ContainerSpec {
            cgroup: self.cgroup.locked().path().to_owned(),
            ..self.spec.clone()
        }
    }

    fn note_identity(&self, spec: &ContainerSpec, image: &PulledImage) -> anyhow::Result<()> {
        let identity = Identity::of(spec, image)?;
        Ok(self.runtime.note_identity(&self.spec.name, &identity)?)
    }

    fn running(
        &self,
        container: RunningContainer,
        image: PulledImage,
        output: Option<Output>,
    ) -> Box<dyn Running> {
        Box::new(Started {
            container,
            output,
            _image: image,
            runtime: self.runtime.clone(),
            images: self.images.clone(),
            init: self.init.clone(),
        })
    }

    /// Adopts the container of this name if it equals the one that would be started now; ends any other.
    async fn take_over(&self, log: LogRing) -> Adopted {
        let name = &self.spec.name;
        let cgroup = self.cgroup.locked().clone();
        // Whatever becomes of the container, its words are wanted, and one that is told to end may have more to say than its pipe holds.
        let output = self.follow_again(log);
        self.runtime.end_left_check(name, |pid| cgroup.holds(pid));
        let why = match self.runtime.adopt(name).await {
            Ok(None) => {
                let (ended, ()) = tokio::join!(self.noted_end(), finish(output));
                return ended;
            }
            Ok(Some(container)) => match self.may_run_on().await {
                Ok(image) => return Adopted::Running(self.running(container, image, output)),
                Err(why) => {
                    end(&container, (self.stop_timeout)()).await;
                    format!("{why:#}")
                }
            },
            Err(error) => format!("{:#}", anyhow::Error::from(error)),
        };
        tracing::info!("container {name} is not taken over: {why}");
        if let Err(error) = cgroup.empty().await {
            tracing::error!("container {name}: {error:#}");
        }
        finish(output).await;
        Adopted::Ended(why)
    }

    /// Says how a container that does not run has ended, if an earlier machined left it running and init reports the end. The report may
    /// still be under way.
    async fn noted_end(&self) -> Adopted {
        let Some(pid) = self.runtime.noted_pid(&self.spec.name) else {
            return Adopted::Nothing;
        };
        if !self.has_left_cgroup() {
            return Adopted::Nothing;
        }
        let told = tokio::time::timeout(RIGHT_BEHIND, self.init.noted_exit(pid)).await;
        told.map_or(Adopted::Nothing, Adopted::Exited)
    }

    /// Whether the cgroup of a container that has ended is still there. Without it the container ended with an earlier generation, and init
    /// reports no exit of those.
    fn has_left_cgroup(&self) -> bool {
        let left = Cgroup::of_container(self.spec.name.as_str());
        self.cgroup.locked().outlives_generation() || left.is_ok_and(|it| it.directory().is_dir())
    }

    /// Returns the image of the running container, if it would be started now and the rules allow it.
    async fn may_run_on(&self) -> anyhow::Result<PulledImage> {
        let image = self.same_image()?;
        let admitted = tokio::time::timeout(LOOK_UP, self.admit(image)).await;
        let late = || {
            format!(
                "its registry named no signature within {} s",
                LOOK_UP.as_secs()
            )
        };
        Ok(admitted.with_context(late)??.into_inner())
    }

    /// Returns the image of the running container, if it is the one that would be started now.
    fn same_image(&self) -> anyhow::Result<PulledImage> {
        let described = Described {
            spec: &self.placed(),
            image: &self.image,
        };
        described.same_image(&self.runtime, &self.images, &self.in_force)
    }

    /// Goes on with the reading of the output that an earlier machined, or this one, has left in the pipe.
    fn follow_again(&self, log: LogRing) -> Option<Output> {
        if let Some(Unattended(output)) = self.unattended.locked().take() {
            return Some(output);
        }
        let kept = self.kept_output.locked();
        let output = kept
            .as_ref()
            .map(|output| Output::follow(output.try_clone()?, log));
        let output = output.transpose().inspect_err(|error| {
            tracing::warn!("the output of {} is lost: {error:#}", self.spec.name)
        });
        output.unwrap_or_default()
    }
}

fn memory_kills(name: &str) -> u64 {
    let cgroup = Cgroup::of_container(name);
    cgroup.map_or(0, |cgroup| cgroup.memory_kills())
}

/// Ends a container as a stop would.
async fn end(container: &RunningContainer, timeout: Duration) {
    if container.terminate().is_ok() {
        // Processes that have not ended by then are killed with their cgroup.
        let _ = tokio::time::timeout(timeout, container.wait()).await;
    }
}

/// Reads what a container that has ended has said last.
async fn finish(output: Option<Output>) {
    if let Some(output) = output {
        output.finish().await;
    }
}

impl Workload for ContainerWorkload {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(self.prepare_image())
    }

    fn renew(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(self.renew_image())
    }

    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(self.run(log))
    }

    fn remark(&self) -> Option<String> {
        self.told_whole_again()
    }

    fn lives_on(&self) -> Option<u32> {
        let pid = self.runtime.noted_pid(&self.spec.name)?;
        self.cgroup.locked().holds(pid).then_some(pid)
    }

    fn read_output(&self, log: LogRing) {
        let output = self.follow_again(log).map(Unattended);
        *self.unattended.locked() = output;
    }

    fn leave_output(&self) -> Step<'_, ()> {
        Box::pin(async {
            let unattended = self.unattended.locked().take();
            if let Some(Unattended(output)) = unattended {
                output.leave().await;
            }
        })
    }

    fn adopt(&self, log: LogRing) -> Step<'_, Adopted> {
        Box::pin(self.take_over(log))
    }

    fn is_part_of_generation(&self) -> bool {
        false
    }

    fn outlives_generation(&self) -> anyhow::Result<()> {
        // Its mounts may be of another filesystem by now.
        keepable(&self.spec)?;
        anyhow::ensure!(
            self.cgroup.locked().outlives_generation(),
            "it was started as one that ends with its generation"
        );
        let pid = self.runtime.noted_pid(&self.spec.name);
        let pid = pid.context("its first process is not known")?;
        Ok(mounts_are_keepable(pid)?)
    }

    fn memory_kills(&self) -> u64 {
        memory_kills(self.spec.name.as_str())
    }

    fn stop_timeout(&self) -> Duration {
        (self.stop_timeout)()
    }

    fn note_record(&self, record: &str) -> anyhow::Result<()> {
        let name = &self.spec.name;
        Ok(self
            .runtime
            .note(name, Record::Service, record.as_bytes())?)
    }

    fn leave_record(&self, record: &str) -> anyhow::Result<()> {
        let name = &self.spec.name;
        Ok(self
            .runtime
            .leave(name, Record::Service, record.as_bytes())?)
    }

    fn record(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        // A container that was a part of an earlier generation ended with it, as it was to.
        if !self.has_left_cgroup() {
            return Ok(None);
        }
        Ok(self
            .runtime
            .left(&self.spec.name, Record::Service, longest)?)
    }

    fn leave_log(&self, log: &[u8]) -> anyhow::Result<()> {
        Ok(self.runtime.leave(&self.spec.name, Record::Log, log)?)
    }

    fn left_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.runtime.left(&self.spec.name, Record::Log, longest)?)
    }

    fn take_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        let log = self.left_log(longest)?;
        if log.is_some() {
            self.runtime.remove_left(&self.spec.name, Record::Log)?;
        }
        Ok(log)
    }

    fn exec<'a>(&'a self, command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async move { Ok(self.runtime.exec(&self.spec.name, command).await?) })
    }
}

struct Started {
    container: RunningContainer,
    output: Option<Output>,
    /// While this value exists, the image cannot be removed.
    _image: PulledImage,
    runtime: Runtime,
    images: ImageStore,
    init: InitLink,
}

impl Running for Started {
    fn pid(&self) -> u32 {
        self.container.pid()
    }

    fn wait(&mut self) -> Step<'_, Exit> {
        Box::pin(async {
            if self.container.wait().await.is_err() {
                return Exit::Unknown;
            }
            // Its parent is init, whose report follows at once.
            let told = self
                .init
                .exit_of(self.container.pid(), self.container.since());
            tokio::time::timeout(RIGHT_BEHIND, told)
                .await
                .unwrap_or(Exit::Unknown)
        })
    }

    fn memory_kills(&self) -> u64 {
        memory_kills(self.container.name().as_str())
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        match signal {
            Signal::Terminate => self.container.terminate(),
            Signal::Kill => self.container.kill(PosixSignal::KILL),
        }
        .context("signal the container")
    }

    fn leave(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            if let Some(output) = self.output.take() {
                output.leave().await;
            }
        })
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            let name = self.container.name();
            if let Err(error) = self.runtime.delete(name, &self.images).await {
                tracing::warn!(
                    "something of container {} is left: {:#}",
                    name.as_str(),
                    anyhow::Error::from(error)
                );
            }
            finish(self.output.take()).await;
            // init kept the pipe for a later machined; nothing is left to read from it.
            let _ = self.init.drop_kept(&output_name(name.as_str())).await;
            // One container fewer.
            Cgroup::weigh_workloads();
        })
    }
}

#[cfg(test)]
mod tests;
