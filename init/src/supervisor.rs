//! init's one loop: receives from machined, reaps, watches the deadline, and carries out the decisions of the ladder.

use crate::console::{complain, say};
use crate::ending::{end_kernel, reboot_because};
use crate::failure::{Failure, Result, fail};
use crate::fingerprint::Fingerprint;
use crate::generation::{Generation, Home, end_processes, read_boot_id};
use crate::kept::Kept;
use crate::link::only;
use crate::reaper::{Exits, Reaper, describe, reap};
use crate::rootfs::{Image, MountedImage, read_machined_ahead};
use crate::verdict::{Event, Ladder, Verdict};
use crate::watchdog::{self, Watchdog};
use crate::workloads::sweep_cgroups;
use instar_init_protocol::{
    BootId, Domain, End, Line, ParseError, Reply, Request, StartReason, Welcome, Workloads,
};
use rustix::process::Pid;
use rustix::system::RebootCommand;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit on the messages taken in a row before init looks at everything else again.
const MESSAGES: usize = 64;

/// Time limit for the machine to look freshly booted: some things end a while after their last user.
const SETTLING: Duration = Duration::from_secs(3);

pub(crate) struct Supervisor {
    home: Home,
    reaper: Reaper,
    watchdog: Watchdog,
    /// The machine before the first generation.
    fresh: Fingerprint,
    /// Default deadline for "healthy"; `next` may set another.
    patience: Duration,
    /// The image of the running generation.
    image: Image,
    /// The previous image to go back to, if one is held.
    previous: Option<Image>,
    kept: Kept,
    /// Whether the workloads survive the change to the generation on trial, and the change back.
    keep_workloads: bool,
    ladder: Ladder,
    /// The running generation; `None` only between two generations.
    generation: Option<Generation>,
    /// The welcome for the running machined. The time left and the kept descriptors are filled in when it says hello.
    welcome: Welcome,
    /// The deadline for machined to report healthy; `None` once it has.
    deadline: Option<Instant>,
}

impl Supervisor {
    /// Takes the fingerprint. Call it last in the boot: every later change is a generation's doing.
    pub(crate) fn new(image: Image, patience: Duration, watchdog: Watchdog) -> Result<Self> {
        Ok(Self {
            home: Home::new()?,
            reaper: Reaper::new()?,
            watchdog,
            fresh: Fingerprint::take(),
            patience,
            image,
            previous: None,
            kept: Kept::default(),
            keep_workloads: false,
            ladder: Ladder::default(),
            generation: None,
            welcome: Welcome::of_kernel(read_boot_id("boot_id")?),
            deadline: None,
        })
    }

    /// Starts the first generation and goes on for ever.
    pub(crate) fn run(mut self) -> ! {
        self.replace(None, self.patience);
        loop {
            self.wait();
            self.listen();
            self.reap();
            if self.time_left() == Some(Duration::ZERO) {
                self.deadline = None;
                self.fail(Event::Late, "machined did not report healthy in time");
            }
            self.watchdog.feed();
        }
    }

    fn time_left(&self) -> Option<Duration> {
        Some(self.deadline?.saturating_duration_since(Instant::now()))
    }

    fn wait(&self) {
        let timeout = self.time_left().unwrap_or(watchdog::INTERVAL);
        let link = self.generation.as_ref().and_then(|it| it.link.descriptor());
        self.reaper.wait(link, timeout.min(watchdog::INTERVAL));
    }

    fn listen(&mut self) {
        for _ in 0..MESSAGES {
            let Some(generation) = &mut self.generation else {
                return;
            };
            match generation.link.receive() {
                Some((request, descriptors)) => self.serve(request, descriptors),
                // machined is of no use without its link; the ladder decides about its death.
                None if generation.link.closed => return generation.kill_machined(),
                None => return,
            }
        }
    }

    fn reap(&mut self) {
        // machined first: the exits of other processes are for the next machined.
        while let Ok(Some((pid, status))) = reap(self.machined()) {
            match &mut self.generation {
                Some(generation) if generation.machined == Some(pid) => {
                    generation.machined = None;
                    // The last packet of machined may be a request, even one that ends the generation.
                    self.listen();
                    if self.machined().is_none() {
                        self.fail(Event::Died, format_args!("machined {}", describe(status)));
                    }
                }
                Some(generation) => generation.link.exited(pid, status),
                None => {}
            }
        }
    }

    fn machined(&self) -> Option<Pid> {
        self.generation.as_ref()?.machined
    }

    fn serve(&mut self, request: Result<Request, ParseError>, descriptors: Vec<OwnedFd>) {
        let to = match &request {
            Ok(request) => Line::lossy(request.verb()),
            Err(error) => error.to.clone(),
        };
        let result = match request {
            Ok(Request::Hello) => return self.welcome(),
            Ok(Request::Healthy { boot_id }) => self.healthy(&boot_id),
            Ok(Request::Keep { name, scope }) => {
                only(descriptors).and_then(|fd| self.kept.keep(name, scope, fd))
            }
            Ok(Request::Drop { name }) => self.kept.drop(&name),
            Ok(Request::Next(next)) => {
                let image =
                    only(descriptors).and_then(|fd| Image::of_memfd(fd, next.blake3, next.version));
                match image.and_then(|image| self.prepare(image)) {
                    Ok((image, mounted)) => {
                        read_machined_ahead(&mounted);
                        self.answer(to, Ok(()));
                        self.let_finish(Duration::from_secs(next.finish.into()));
                        self.previous = Some(std::mem::replace(&mut self.image, image));
                        self.keep_workloads = next.workloads == Workloads::Keep;
                        self.because(StartReason::Next, None, None);
                        let deadline = Duration::from_secs(next.deadline.into());
                        return self.replace(Some(mounted), deadline);
                    }
                    Err(failure) => Err(failure),
                }
            }
            Ok(Request::GiveUp { reason }) => {
                self.answer(to, Ok(()));
                return self.fail(Event::GaveUp, format_args!("machined gave up: {reason}"));
            }
            Ok(Request::End(End::Kexec)) if !is_kexec_loaded() => {
                fail!(Kernel: "no kernel is loaded for kexec")
            }
            Ok(Request::End(end)) => {
                say!("machined asks for {to}");
                self.answer(to, Ok(()));
                self.end_machine(end)
            }
            Err(ParseError { code, text, .. }) => Err(Failure { code, text }),
        };
        if let Err(failure) = &result {
            complain!("refused '{to}': {failure}");
        }
        self.answer(to, result);
    }

    fn answer(&self, to: Line, result: Result<()>) {
        if let Some(generation) = &self.generation {
            generation.link.answer(to, result);
        }
    }

    fn welcome(&mut self) {
        let left = self.time_left().unwrap_or_default().as_secs();
        self.welcome.deadline = u32::try_from(left).unwrap_or(u32::MAX);
        let (names, descriptors) = self.kept.all();
        self.welcome.kept = names;
        if let Some(generation) = &mut self.generation {
            let welcome = Reply::Welcome(self.welcome.clone());
            generation.link.welcome(welcome, &descriptors);
        }
    }

    fn healthy(&mut self, boot_id: &BootId) -> Result<()> {
        if self.welcome.boot_id != *boot_id {
            return fail!(OtherBootId: "this is the boot id of another generation");
        }
        self.ladder.decide(Event::Healthy, Instant::now());
        self.deadline = None;
        self.previous = None;
        say!(
            "generation {} is healthy and committed",
            self.welcome.generation
        );
        Ok(())
    }

    /// Verifies and mounts a next image beside the running one, and asks the ladder.
    fn prepare(&mut self, image: Image) -> Result<(Image, MountedImage)> {
        let mounted = image.mount()?;
        match self.ladder.decide(Event::NextReady, Instant::now()) {
            Verdict::Swap => Ok((image, mounted)),
            _ => fail!(WrongState: "this generation has not reported healthy yet"),
        }
    }

    /// Waits until machined has ended, within a limit: its callers get their last answers.
    fn let_finish(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while let Some(Generation { link, .. }) = &mut self.generation
            && Instant::now() < end
            && let Some(socket) = link.descriptor()
        {
            let left = end.saturating_duration_since(Instant::now());
            self.reaper.wait(Some(socket), left);
            // It has nothing left to ask for.
            let _ = link.receive();
        }
    }

    /// Sets the reason of the start that the next machined is told.
    fn because(&mut self, start: StartReason, cause: Option<Line>, failed_version: Option<Line>) {
        self.welcome.start = start;
        self.welcome.cause = cause;
        self.welcome.failed_version = failed_version;
    }

    /// Handles a failure: logs it, asks the ladder for the next step and takes it. A step that fails asks again, and the ladder ends with a
    /// reboot.
    fn fail(&mut self, event: Event, cause: impl Display) {
        let cause = Line::lossy(&cause.to_string());
        let what = format!("generation {}: {cause}", self.welcome.generation);
        let verdict = self.ladder.decide(event, Instant::now());
        match (verdict, self.previous.take()) {
            (Verdict::Restart, previous) => {
                complain!("{what}; starting machined again");
                self.previous = previous;
                self.because(StartReason::Restart, Some(cause), None);
                match self.generation.as_mut().map(Generation::restart_machined) {
                    Some(Err(failure)) => self.fail(Event::Unstartable, failure),
                    // A generation that is not committed gets no more time by restarts.
                    _ => self.deadline = self.deadline.or(Some(Instant::now() + self.patience)),
                }
            }
            (Verdict::StartFresh, _) => {
                complain!("{what}; starting its image again in a fresh generation");
                self.because(StartReason::Fresh, Some(cause), None);
                self.keep_workloads = false;
                self.replace(None, self.patience);
            }
            (Verdict::GoBack, Some(previous)) => {
                let failed = std::mem::replace(&mut self.image, previous);
                let version = failed.version;
                complain!("{what}; going back from {version} to the previous image");
                self.because(StartReason::Rollback, Some(cause), Some(version));
                self.replace(None, self.patience);
            }
            // The ladder returns nothing else for a failure; if it did, a reboot would be right.
            _ => {
                self.kill_everything();
                reboot_because(what);
            }
        }
    }

    /// Ends the running generation, if there is one, and starts another.
    fn replace(&mut self, mounted: Option<MountedImage>, deadline: Duration) {
        let exits = match self.end_generation(mounted.as_ref()) {
            Ok(exits) => exits,
            Err(failure) => return self.fail(Event::Unclean, failure),
        };
        let started = self.start(mounted);
        self.deadline = Some(Instant::now() + deadline);
        match started {
            Ok(mut generation) => {
                for (pid, status) in exits {
                    generation.link.exited(pid, status);
                }
                self.generation = Some(generation);
            }
            Err(failure) => self.fail(Event::Unstartable, failure),
        }
    }

    fn start(&mut self, mounted: Option<MountedImage>) -> Result<Generation> {
        self.welcome.generation += 1;
        self.welcome.boot_id = read_boot_id("uuid")?;
        let kept = self.keep_workloads;
        self.welcome.workloads = Some(if kept { Domain::Kept } else { Domain::New });
        let image = mounted.map_or_else(|| self.image.mount(), Ok)?;
        Generation::start(&self.welcome, &image, &self.home)
    }

    /// Ends the running generation and restores the machine to its state before the first, except for workloads that are kept. Workloads
    /// may be what prevents that: then they end, too, before the machine is given up. `next` is an image that is mounted already. Returns
    /// the exits for the next machined.
    fn end_generation(&mut self, next: Option<&MountedImage>) -> Result<Exits> {
        let Some(generation) = self.generation.take() else {
            return Ok(Exits::new());
        };
        let keep = self.keep_workloads;
        self.kept.end_generation(keep);
        let mut exits = generation.end(keep, &self.home, &self.reaper, &mut self.watchdog)?;
        let ours = next.map(|it| it.device.as_str());
        if let Err(failure) = self.be_fresh(keep, ours) {
            if !keep {
                return Err(failure);
            }
            complain!("{failure}; the workloads end as well");
            self.keep_workloads = false;
            self.kept.end_generation(false);
            let (reaper, watchdog) = (&self.reaper, &mut self.watchdog);
            exits.extend(end_processes(None, false, reaper, watchdog)?);
            self.be_fresh(false, ours)?;
        }
        Ok(if keep { exits } else { Exits::new() })
    }

    /// Checks that the machine looks freshly booted, except for kept workloads. `ours` is the loop device of the next image.
    fn be_fresh(&self, keep: bool, ours: Option<&str>) -> Result<()> {
        // Kept workloads depend on the sysctls that they were started with.
        if !keep {
            self.fresh.restore_sysctls()?;
        }
        let begin = Instant::now();
        loop {
            sweep_cgroups(keep);
            match self.fresh.compare(keep, ours) {
                Err(_) if begin.elapsed() < SETTLING => sleep(Duration::from_millis(10)),
                result => return result,
            }
        }
    }

    fn kill_everything(&mut self) {
        if let Some(generation) = self.generation.take()
            && let Err(failure) =
                generation.end(false, &self.home, &self.reaper, &mut self.watchdog)
        {
            complain!("{failure}; going on");
        }
    }

    fn end_machine(&mut self, end: End) -> ! {
        self.kill_everything();
        if end == End::Halt {
            self.watchdog.stop();
        }
        end_kernel(match end {
            End::Reboot => RebootCommand::Restart,
            End::PowerOff => RebootCommand::PowerOff,
            End::Halt => RebootCommand::Halt,
            End::Kexec => RebootCommand::Kexec,
        })
    }
}

fn is_kexec_loaded() -> bool {
    std::fs::read_to_string("/sys/kernel/kexec_loaded").is_ok_and(|loaded| loaded.trim() == "1")
}
