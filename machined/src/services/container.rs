//! A container as a service: its image pulled and unpacked, its process started by crun, watched and adopted.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context as _;
use rustix::process::Signal as PosixSignal;
use tokio::io::AsyncReadExt as _;

use super::log_ring::LogRing;
use super::workload::{Exit, Running, Signal, Step, Workload};
use crate::containers::{
    ContainerSpec, HostView, ImageReference, ImageStore, Limits, PulledImage, Puller,
    RunningContainer, Runtime, Streams,
};
use crate::init_link::{InitLink, Scope};

/// What it takes to run a container, again and again.
pub struct ContainerWorkload {
    /// What it is to be.
    pub spec: ContainerSpec,
    /// Its image.
    pub image: ImageReference,
    /// Where images come from.
    pub puller: Arc<Puller>,
    /// Where images are.
    pub images: ImageStore,
    /// What makes containers.
    pub runtime: Runtime,
    /// Tells how its process ended, and keeps its output's pipe over a restart of machined.
    pub init: InitLink,
    /// The pipe that an earlier machined of this generation left.
    pub kept_output: std::sync::Mutex<Option<OwnedFd>>,
}

/// The longest name that init keeps a descriptor under (`FdName` of its protocol).
const LONGEST_KEPT_NAME: usize = 32;

/// The name that init keeps a service's output under. A name that is too long for that becomes its digest, with another prefix, so
/// that no other service's name is like it.
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
    fn pulled(&self) -> anyhow::Result<PulledImage> {
        self.images
            .find(&self.image)
            .with_context(|| format!("the image {} is not in the store", self.image))
    }

    async fn pull(&self) -> anyhow::Result<()> {
        let wanted = self.image.digest();
        if wanted.is_some() && self.images.find(&self.image).is_some() {
            return Ok(());
        }
        let pulled = async {
            let resolved = self.puller.resolve(&self.image).await?;
            self.puller
                .pull(&resolved, &self.images, &Limits::default())
                .await
        };
        match pulled.await {
            Ok(_) => Ok(()),
            // A registry that is away does not keep a machine from running what it has.
            Err(error) if self.images.find(&self.image).is_some() => {
                tracing::warn!(
                    "{}: the copy on this machine is used: {:#}",
                    self.image,
                    anyhow::Error::from(error)
                );
                Ok(())
            }
            Err(error) => Err(error).with_context(|| format!("pull {}", self.image)),
        }
    }

    async fn run(&self, log: LogRing) -> anyhow::Result<Box<dyn Running>> {
        let image = self.pulled()?;
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .context("make the output's pipe")?;
        let name = output_name(self.spec.name.as_str());
        self.init
            .keep(&name, Scope::Generation, &read)
            .await
            .context("have init keep the output's pipe")?;
        follow(read, log)?;
        let streams = Streams {
            stdout: write.try_clone()?,
            stderr: write,
        };
        let host = HostView::of_this_machine();
        let running = self
            .runtime
            .start(&self.spec, &image, &self.images, &host, streams, &[])
            .await?;
        Ok(self.running(running))
    }

    fn running(&self, container: RunningContainer) -> Box<dyn Running> {
        Box::new(Started {
            container,
            runtime: self.runtime.clone(),
            images: self.images.clone(),
            init: self.init.clone(),
        })
    }

    async fn take_over(&self, log: LogRing) -> Option<Box<dyn Running>> {
        let output = self
            .kept_output
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take();
        let container = self.runtime.adopt(&self.spec.name).await.ok().flatten()?;
        if let Some(output) = output
            && let Err(error) = follow(output, log)
        {
            tracing::warn!(
                "the output of {} is lost: {error:#}",
                self.spec.name.as_str()
            );
        }
        Some(self.running(container))
    }
}

/// Reads a service's output to its end.
fn follow(output: OwnedFd, log: LogRing) -> anyhow::Result<()> {
    let mut output = tokio::net::unix::pipe::Receiver::from_owned_fd(output)
        .context("watch the output's pipe")?;
    tokio::spawn(async move {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut chunk).await {
            log.write(&chunk[..length]);
        }
    });
    Ok(())
}

impl Workload for ContainerWorkload {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(self.pull())
    }

    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(self.run(log))
    }

    fn adopt(&self, log: LogRing) -> Step<'_, Option<Box<dyn Running>>> {
        Box::pin(self.take_over(log))
    }

    fn exec<'a>(&'a self, command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async move { Ok(self.runtime.exec(&self.spec.name, command).await?) })
    }
}

struct Started {
    container: RunningContainer,
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
            // Its parent is init; init's word comes right behind.
            let told = self.init.exit_of(self.container.pid());
            tokio::time::timeout(std::time::Duration::from_secs(5), told)
                .await
                .unwrap_or(Exit::Unknown)
        })
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        match signal {
            Signal::Terminate => self.container.terminate(),
            Signal::Kill => self.container.kill(PosixSignal::KILL),
        }
        .context("signal the container")
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
            // Kept for a machined that comes after this one; there is nothing to read any more.
            let _ = self.init.drop_kept(&output_name(name.as_str())).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// init takes names of 32 bytes; names of containers may have 63.
    #[test]
    fn every_service_has_a_kept_name_of_its_own() {
        assert_eq!(output_name("web"), "log.web");
        let common = "a-name-of-many-characters-that";
        let names = ["", "-one", "-two", "-one-that-is-as-long-as-names-may-be"]
            .map(|tail| output_name(&format!("{common}{tail}")));
        for (index, name) in names.iter().enumerate() {
            assert!(
                name.parse::<instar_init_protocol::FdName>().is_ok(),
                "{name}"
            );
            assert!(!names[..index].contains(name), "{name}");
        }
    }
}
