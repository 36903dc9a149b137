//! Containers as processes, made by crun.
//!
//! crun runs as a process of its own and has ended when the container's first process runs. That process then belongs to init, which
//! reaps it and reports its exit status. machined watches and signals it by its pidfd, so that no signal can ever reach another process
//! with the same PID.
//!
//! ```text
//! <run>/<name>/rootfs/       the joined file system, mounted until the container has a mount of its own
//!             /config.json   the runtime configuration for crun
//!             /identity.json the container's image and definition
//!             /pid, crun.log
//!             /service.json, log  the service's last state and the end of its log, if the container was left running
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{ChildStderr, Command};

use super::disposition::ignores_signal;
use super::exec_program::ExecProgram;
use super::host_files::{DOMAIN, has_domain};
use super::host_path::{HostPathError, HostPaths};
use super::identity::Identity;
use super::reserve::Reserve;
use super::rootfs::{self, RootfsError};
use super::spec::{ContainerSpec, HostView, SpecError, runtime_config};
use super::tail::Tail;
use super::volume;
use crate::base::{blocking_io, removal, whole_file};
use crate::oci::{ImageStore, PulledImage, VerifiedImage};
use crate::sys::container::pass_descriptors;
use crate::sys::oom_score;
use crate::sys::readiness;
use crate::values::ContainerName;

/// Timeout for one call of crun. crun needs some 50 ms; on a machine that is out of memory, much more.
const PATIENCE: Duration = Duration::from_secs(60);
/// Length limit of the quotes in an error, of crun's log or of a program's output, in bytes.
const LOG_TAIL: usize = 1000;
/// Size limit of crun's log in a bundle, in bytes. A longer log is emptied before a program is run: each health check that crun
/// cannot run adds a line.
const LONGEST_LOG: u64 = 64 * 1024;
/// Name of the file in a bundle that holds the container's [`Identity`].
const IDENTITY: &str = "identity.json";
/// Timeout for the rest of a program's standard error after the program has ended: a child that it left behind may keep it open for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The container runtime: the path of crun, and the directories that it works in.
#[derive(Debug, Clone)]
pub struct Runtime {
    crun: PathBuf,
    /// Directory of crun's own state.
    state: PathBuf,
    /// Directory of the bundles and mounts.
    run: PathBuf,
    /// Directory of the programs of health checks, by container.
    checks: PathBuf,
}

/// Memory of the generation: where workloads have filled theirs, crun could not write a program's PID, and the check of each container would fail.
const CHECKS: &str = "/run/machined/checks";

/// A file that machined leaves beside a container that goes on running without machined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// The last known state of the container's service.
    Service,
    /// The end of its log.
    Log,
}

/// The output streams of a container.
#[derive(Debug)]
pub struct Streams {
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
}

/// Why a container does not run, or cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The container's specification is invalid.
    #[error("container {name} cannot be described")]
    Spec {
        /// The container.
        name: ContainerName,
        /// Why.
        source: SpecError,
    },
    /// The container's root filesystem cannot be made.
    #[error("container {name} has no root file system")]
    Rootfs {
        /// The container.
        name: ContainerName,
        /// Why.
        source: RootfsError,
    },
    /// A file of the machine cannot be mounted into the container.
    #[error("container {name} does not get what it mounts")]
    HostPath {
        /// The container.
        name: ContainerName,
        /// Why.
        source: HostPathError,
    },
    /// A file of machined's own (a bundle, a record) cannot be read or written.
    #[error("{step} {path:?} failed")]
    Io {
        /// The failed step.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// crun could not be started.
    #[error("{program:?} could not be run")]
    Program {
        /// crun.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// crun failed.
    #[error("crun {step} of container {name} failed: {said}")]
    Crun {
        /// `create`, `start`, `delete` or `state`.
        step: &'static str,
        /// The container.
        name: ContainerName,
        /// The end of crun's log, or how crun ended.
        said: String,
    },
    /// A program that ran in the container failed.
    #[error("{command} in container {name} failed ({status}){said}")]
    Exec {
        /// The program and its arguments.
        command: String,
        /// The container.
        name: ContainerName,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of the program's standard error, ready to follow the sentence.
        said: String,
    },
    /// The container's first process cannot be watched.
    #[error("the process of container {name} cannot be watched")]
    Watch {
        /// The container.
        name: ContainerName,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A container whose first process has been started. Dropping this value does not end the container.
#[derive(Debug)]
pub struct RunningContainer {
    name: ContainerName,
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    since: Instant,
}

impl RunningContainer {
    fn watch(name: &ContainerName, pid: Pid) -> io::Result<Self> {
        let since = Instant::now();
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        Ok(RunningContainer {
            name: name.clone(),
            pid,
            pidfd: readiness::watch(pidfd, Interest::READABLE)?,
            since,
        })
    }

    /// Returns the container's name.
    pub fn name(&self) -> &ContainerName {
        &self.name
    }

    /// Returns the PID of the first process on the machine. init reports the exit status under this number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns when the watch of the first process began. Before that the PID may have been another process's.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Waits until the first process has ended. Its exit status comes from init.
    pub async fn wait(&self) -> io::Result<()> {
        // A pidfd stays readable once the process has ended, so the readiness is kept.
        self.pidfd.readable().await?.retain_ready();
        Ok(())
    }

    /// Sends SIGTERM to the first process. A first process that ignores SIGTERM, as most programs do that were not written to be
    /// first in a container, gets SIGKILL at once: waiting for it would be in vain.
    pub fn terminate(&self) -> io::Result<()> {
        match ignores_signal(self.pid, Signal::TERM) {
            true => self.kill(Signal::KILL),
            false => self.kill(Signal::TERM),
        }
    }

    /// Sends a signal to the first process. A process that has ended already is no error.
    pub fn kill(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The fields of the output of `crun state` that are used here.
#[derive(Deserialize)]
struct State {
    pid: i32,
    status: String,
}

/// The path of crun.
const CRUN: &str = "/usr/bin/crun";

impl Default for Runtime {
    fn default() -> Self {
        if !has_domain() {
            return Self::of_the_generation();
        }
        let domain = Path::new(DOMAIN);
        let runtime = Runtime::new(CRUN.into(), domain.join("crun"), domain.join("containers"));
        Runtime {
            checks: CHECKS.into(),
            ..runtime
        }
    }
}

impl Runtime {
    /// Returns the runtime for containers that end with the generation. It has memory of its own: data of workloads, which may be in the
    /// domain's memory, cannot take the room of an upgrade.
    pub fn of_the_generation() -> Self {
        Runtime::new(
            CRUN.into(),
            "/run/crun".into(),
            "/run/machined/containers".into(),
        )
    }

    /// Creates a runtime from crun's path, the directory of crun's state, and the directory of the bundles.
    pub fn new(crun: PathBuf, state: PathBuf, run: PathBuf) -> Self {
        Runtime {
            crun,
            state,
            checks: run.clone(),
            run,
        }
    }

    /// Starts a container from an image, and removes the remains of an older container of that name first. The preserved
    /// descriptors become 3, 4, … in the container. After an error nothing of it is left.
    pub async fn start(
        &self,
        spec: &ContainerSpec,
        image: &VerifiedImage,
        store: &ImageStore,
        host: &HostView,
        streams: Streams,
        preserved: &[OwnedFd],
    ) -> Result<RunningContainer, RuntimeError> {
        let name = &spec.name;
        self.make_directories()?;
        self.delete(name, store).await?;
        let spec = ContainerSpec {
            preserved_fds: preserved.len() as u32,
            ..spec.clone()
        };
        let started = async {
            let host_path = |source| RuntimeError::HostPath {
                name: name.clone(),
                source,
            };
            let host_paths = HostPaths::open(&spec).map_err(host_path)?;
            self.write_bundle(&spec, image, store, host)?;
            self.create(&spec, streams, preserved).await?;
            // The container has its own copy of this mount by now. Left in place, this one would tie the container to the generation.
            let target = self.bundle(name).join("rootfs");
            rootfs::unmount_here(&target).map_err(|source| RuntimeError::Rootfs {
                name: name.clone(),
                source,
            })?;
            let running = self.watch_created(name)?;
            host_paths.compare(running.pid).map_err(host_path)?;
            self.crun("start", name, &[name.as_str().as_ref()]).await?;
            Ok(running)
        };
        match started.await {
            Ok(running) => Ok(running),
            Err(error) => {
                if let Err(left) = self.delete(name, store).await {
                    tracing::warn!("something of container {name} is left: {left}");
                }
                Err(error)
            }
        }
    }

    /// Takes over a container that an earlier machined started; `None` if it does not run any more.
    pub async fn adopt(
        &self,
        name: &ContainerName,
    ) -> Result<Option<RunningContainer>, RuntimeError> {
        let Some(pid) = self.running_pid(name).await? else {
            return Ok(None);
        };
        let running = match RunningContainer::watch(name, pid) {
            Ok(running) => running,
            // The container has ended between the two calls.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => return Ok(None),
            Err(source) => {
                return Err(RuntimeError::Watch {
                    name: name.clone(),
                    source,
                });
            }
        };
        // crun compares the process's start time: the same PID after the pidfd was opened means that the pidfd is of the right process.
        Ok((self.running_pid(name).await? == Some(pid)).then_some(running))
    }

    /// Runs a program in a running container, as the container's user and within its limits. An exit status other than 0 is an
    /// error that quotes the program's standard error. Dropping the future ends the program.
    pub async fn exec(&self, name: &ContainerName, command: &[String]) -> Result<(), RuntimeError> {
        let directory = self.checks.join(name.as_str());
        fs::create_dir_all(&directory).map_err(failed("creating", &directory))?;
        let program = ExecProgram::in_directory(&directory);
        let pid_file = program.pid_file().as_os_str();
        let mut arguments = vec!["--pid-file".as_ref(), pid_file, name.as_str().as_ref()];
        arguments.extend(command.iter().map(OsStr::new));
        let mut crun = self.command("exec", name, &arguments);
        crun.stdout(Stdio::null()).stderr(Stdio::piped());
        let log = self.log(name);
        if length_of(&log) > LONGEST_LOG {
            fs::write(&log, "").map_err(failed("emptying", &log))?;
        }
        let before = length_of(&log);
        let program_error = |source| RuntimeError::Program {
            program: self.crun.clone(),
            source,
        };
        let mut child = crun.spawn().map_err(program_error)?;
        let mut stderr = child.stderr.take();
        let mut words = Tail::of(LOG_TAIL);
        let ended = tokio::select! {
            ended = child.wait() => ended,
            () = hear(&mut stderr, &mut words) => child.wait().await,
        };
        let status = ended.map_err(program_error)?;
        // The file is missing if crun failed before it wrote it.
        let _ = fs::remove_file(program.pid_file());
        if status.success() {
            return Ok(());
        }
        words.hurry();
        // After the timeout, the error quotes the output so far.
        let _ = tokio::time::timeout(LAST_WORDS, hear(&mut stderr, &mut words)).await;
        // If crun could not start the program, the reason is in crun's log.
        let mut said = one_line(words.bytes());
        if said.is_empty() {
            said = tail(&log, before);
        }
        Err(RuntimeError::Exec {
            command: command.join(" "),
            name: name.clone(),
            status,
            said: if said.is_empty() {
                said
            } else {
                format!(": {said}")
            },
        })
    }

    /// Ends the program of a health check that an earlier machined has left in a container: nobody waits for it any more. `is_of_container`
    /// says whether a process belongs to the container; another one may have got the number since.
    pub fn end_left_check(&self, name: &ContainerName, is_of_container: impl Fn(u32) -> bool) {
        ExecProgram::in_directory(&self.checks.join(name.as_str())).end_if(is_of_container);
    }

    /// Lists the containers that have a bundle, running or not.
    pub fn names(&self) -> Result<Vec<ContainerName>, RuntimeError> {
        let entries = match fs::read_dir(&self.run) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("listing", &self.run)(error)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(names.collect())
    }

    /// Ends a container if it runs (SIGKILL) and removes all its files. A container that does not exist is no error.
    pub async fn delete(
        &self,
        name: &ContainerName,
        store: &ImageStore,
    ) -> Result<(), RuntimeError> {
        if self.is_known(name) {
            self.crun(
                "delete",
                name,
                &["--force".as_ref(), name.as_str().as_ref()],
            )
            .await?;
        }
        let bundle = self.bundle(name);
        let (layer, target) = (
            store.container_directory(name.as_str()),
            bundle.join("rootfs"),
        );
        let removal = move || {
            rootfs::unmount_and_remove(&layer, &target)?;
            removal::tree(&bundle).map_err(|source| RootfsError::Io {
                step: "removing",
                path: bundle.clone(),
                source,
            })
        };
        let removed = blocking_io::within(blocking_io::ANSWER, removal).await;
        let removed = removed.unwrap_or_else(|error| {
            let path = self.bundle(name);
            Err(RootfsError::Io {
                step: "removing",
                path,
                source: io::Error::other(error),
            })
        });
        removed.map_err(|source| RuntimeError::Rootfs {
            name: name.clone(),
            source,
        })
    }

    /// Makes the directories of the bundles and of crun's state. Only root may read them: a bundle holds the container's
    /// environment, and crun keeps a copy.
    fn make_directories(&self) -> Result<(), RuntimeError> {
        for directory in [&self.run, &self.state] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .map_err(failed("creating", directory))?;
        }
        let device = |path: &Path| fs::metadata(path).map(|it| it.dev()).ok();
        if device(&self.run) == device(Path::new("/var")) {
            Reserve::beside(&self.run).take();
        }
        Ok(())
    }

    fn bundle(&self, name: &ContainerName) -> PathBuf {
        self.run.join(name.as_str())
    }

    /// Writes the identity of a running container into its bundle.
    ///
    /// # Errors
    /// The record cannot be written. A later machined will not take the container over then.
    pub fn note_identity(
        &self,
        name: &ContainerName,
        identity: &Identity,
    ) -> Result<(), RuntimeError> {
        let path = self.bundle(name).join(IDENTITY);
        let text = serde_json::to_string(identity).map_err(io::Error::from);
        text.and_then(|text| fs::write(&path, text))
            .map_err(failed("writing", &path))
    }

    /// Returns the identity of a running container; `None` if the record is missing or unreadable.
    pub fn identity(&self, name: &ContainerName) -> Option<Identity> {
        let record = fs::read(self.bundle(name).join(IDENTITY)).ok()?;
        serde_json::from_slice(&record).ok()
    }

    /// Returns the PID of the container's first process as crun noted it at the start; `None` if no note is left.
    pub fn noted_pid(&self, name: &ContainerName) -> Option<u32> {
        let pid = self.read_pid(name).ok()?;
        Some(pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Path of the file that crun writes the first process's PID to.
    fn pid_file(&self, name: &ContainerName) -> PathBuf {
        self.bundle(name).join("pid")
    }

    fn read_pid(&self, name: &ContainerName) -> io::Result<Pid> {
        let text = fs::read_to_string(self.pid_file(name))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Writes a record beside a container that is looked after, atomically. The room for what is left to the next machined stays as it is.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn note(
        &self,
        name: &ContainerName,
        record: Record,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        let path = self.record(name, record);
        whole_file::replace(&path, 0o644, bytes).map_err(failed("writing", &path))
    }

    /// Writes a record beside a container, atomically. It is removed with the container.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn leave(
        &self,
        name: &ContainerName,
        record: Record,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        let path = self.record(name, record);
        let write = || whole_file::replace(&path, 0o644, bytes);
        Reserve::beside(&self.run)
            .or_with_its_room(bytes.len() as u64, write)
            .map_err(failed("writing", &path))
    }

    /// Returns the record beside a container, at most `most` bytes of it; `None` if there is none.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn left(
        &self,
        name: &ContainerName,
        record: Record,
        longest: usize,
    ) -> Result<Option<Vec<u8>>, RuntimeError> {
        let path = self.record(name, record);
        let mut bytes = Vec::new();
        let read = fs::File::open(&path)
            .and_then(|file| file.take(longest as u64).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("reading", &path)(error)),
        }
    }

    /// Removes the record beside a container.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub fn remove_left(&self, name: &ContainerName, record: Record) -> Result<(), RuntimeError> {
        let path = self.record(name, record);
        fs::remove_file(&path).map_err(failed("removing", &path))
    }

    fn record(&self, name: &ContainerName, record: Record) -> PathBuf {
        self.bundle(name).join(match record {
            Record::Service => "service.json",
            Record::Log => "log",
        })
    }

    fn is_known(&self, name: &ContainerName) -> bool {
        self.state.join(name.as_str()).exists()
    }

    fn write_bundle(
        &self,
        spec: &ContainerSpec,
        image: &PulledImage,
        store: &ImageStore,
        host: &HostView,
    ) -> Result<(), RuntimeError> {
        let name = &spec.name;
        let bundle = self.bundle(name);
        let config = runtime_config(
            spec,
            image.config(),
            &image.rootfs(),
            &bundle.join("rootfs"),
            host,
        )
        .map_err(|source| RuntimeError::Spec {
            name: name.clone(),
            source,
        })?;
        for path in spec.writable_volumes() {
            let user = spec
                .user(image.config(), &image.rootfs())
                .map_err(|unknown| RuntimeError::Spec {
                    name: name.clone(),
                    source: unknown.into(),
                })?;
            volume::hand_over(&path, &user).map_err(failed("handing over", &path))?;
        }
        let layer = store.container_directory(name.as_str());
        rootfs::mount(&image.rootfs(), &layer, &bundle.join("rootfs")).map_err(|source| {
            RuntimeError::Rootfs {
                name: name.clone(),
                source,
            }
        })?;
        let path = bundle.join("config.json");
        write_secret(&path, &config.to_string()).map_err(failed("writing", &path))
    }

    async fn create(
        &self,
        spec: &ContainerSpec,
        streams: Streams,
        preserved: &[OwnedFd],
    ) -> Result<(), RuntimeError> {
        let name = &spec.name;
        let bundle = self.bundle(name);
        let pid_file = self.pid_file(name);
        let count = spec.preserved_fds.to_string();
        let arguments: [&OsStr; 7] = [
            "--bundle".as_ref(),
            bundle.as_os_str(),
            "--pid-file".as_ref(),
            pid_file.as_os_str(),
            "--preserve-fds".as_ref(),
            count.as_ref(),
            name.as_str().as_ref(),
        ];
        let mut command = self.command("create", name, &arguments);
        command.stdout(streams.stdout).stderr(streams.stderr);
        let passing = pass_descriptors(&mut command, preserved)
            .map_err(failed("passing descriptors to", &self.crun))?;
        let result = self.run(command, "create", name).await;
        drop(passing);
        result.map(|_| ())
    }

    fn watch_created(&self, name: &ContainerName) -> Result<RunningContainer, RuntimeError> {
        let read = self.read_pid(name);
        let pid = read.map_err(failed("reading", &self.pid_file(name)))?;
        // The process waits for `crun start`: it cannot have ended, so its PID cannot have been reused.
        RunningContainer::watch(name, pid).map_err(|source| RuntimeError::Watch {
            name: name.clone(),
            source,
        })
    }

    async fn running_pid(&self, name: &ContainerName) -> Result<Option<Pid>, RuntimeError> {
        if !self.is_known(name) {
            return Ok(None);
        }
        let output = self.crun("state", name, &[name.as_str().as_ref()]).await?;
        let state: State = serde_json::from_slice(&output).map_err(|error| RuntimeError::Crun {
            step: "state",
            name: name.clone(),
            said: format!("unreadable answer: {error}"),
        })?;
        Ok(Pid::from_raw(state.pid).filter(|_| state.status == "running"))
    }

    async fn crun(
        &self,
        step: &'static str,
        name: &ContainerName,
        arguments: &[&OsStr],
    ) -> Result<Vec<u8>, RuntimeError> {
        let mut command = self.command(step, name, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        self.run(command, step, name).await
    }

    fn command(&self, step: &str, name: &ContainerName, arguments: &[&OsStr]) -> Command {
        let mut command = Command::new(&self.crun);
        command
            .arg("--root")
            .arg(&self.state)
            .arg("--cgroup-manager=cgroupfs")
            // crun's standard error is the container's, so crun writes its own messages to a log file.
            .arg("--log")
            .arg(self.log(name))
            .arg(step)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        oom_score::set_for(&mut command, oom_score::USUAL);
        command
    }

    /// Path of crun's log: in the bundle, or beside the bundles for a container that has none (any more).
    fn log(&self, name: &ContainerName) -> PathBuf {
        let bundle = self.bundle(name);
        if bundle.is_dir() {
            bundle.join("crun.log")
        } else {
            self.run.join("crun.log")
        }
    }

    async fn run(
        &self,
        mut command: Command,
        step: &'static str,
        name: &ContainerName,
    ) -> Result<Vec<u8>, RuntimeError> {
        self.make_directories()?;
        let log = self.log(name);
        let before = length_of(&log);
        let program = |source| RuntimeError::Program {
            program: self.crun.clone(),
            source,
        };
        let child = command.spawn().map_err(program)?;
        // The command holds copies of the container's streams. Close them: a reader at the other end waits until every copy is closed.
        drop(command);
        let said = |end: String| {
            let tail = tail(&log, before);
            if tail.is_empty() { end } else { tail }
        };
        let refused = |said| RuntimeError::Crun {
            step,
            name: name.clone(),
            said,
        };
        match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
            Ok(Ok(output)) if output.status.success() => Ok(output.stdout),
            Ok(Ok(output)) => Err(refused(said(format!("it ended with {}", output.status)))),
            Ok(Err(source)) => Err(program(source)),
            Err(_) => Err(refused(said(format!(
                "it did not end within {} s",
                PATIENCE.as_secs()
            )))),
        }
    }
}

fn failed<'a>(step: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> RuntimeError + 'a {
    move |source| RuntimeError::Io {
        step,
        path: path.to_owned(),
        source,
    }
}

/// Reads a program's standard error to its end. The container controls this text, so neither its amount nor its speed is bounded.
async fn hear(stderr: &mut Option<ChildStderr>, words: &mut Tail) {
    if let Some(stderr) = stderr {
        words.follow(stderr).await;
    }
}

/// Writes a file that only root may read: a container's environment holds passwords.
fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

fn length_of(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

/// Returns the last lines that were added to a log after byte `before`, on one line.
fn tail(log: &Path, before: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let new = bytes
        .get(usize::try_from(before).unwrap_or(usize::MAX)..)
        .unwrap_or_default();
    one_line(&new[new.len().saturating_sub(LOG_TAIL)..])
}

fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests;
