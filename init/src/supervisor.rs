//! init's one loop: listens to machined, reaps, watches the deadline, and carries out what the ladder decides.

use crate::console::{complain, say};
use crate::failure::{Failure, Result};
use crate::fingerprint::Fingerprint;
use crate::generation::{CGROUPS, DYING, Generation, Home, remove_cgroups};
use crate::kept::Kept;
use crate::link::{Received, only};
use crate::reaper::{Reaped, Reaper, describe};
use crate::rootfs::{Image, MountedImage};
use crate::verdict::{Event, Ladder, Verdict};
use crate::watchdog::{self, Watchdog};
use instar_init_protocol::{BootId, ErrorCode, Line, Reply, Request, StartReason, Welcome};
use rustix::process::WaitStatus;
use rustix::system::{RebootCommand, reboot};
use std::fmt::Display;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How many messages are taken before init looks at everything else again.
const MESSAGES: usize = 64;

/// How long the machine may take to look freshly booted: some things end after their last user.
const SETTLING: Duration = Duration::from_secs(3);

/// Time to read the console before it is gone.
pub(crate) const READING: Duration = Duration::from_secs(10);

/// Everything that init knows.
pub(crate) struct Supervisor {
    /// What the boot found.
    machine: Machine,
    /// The image that runs.
    image: Image,
    /// The one to go back to, while there is one.
    previous: Option<Image>,
    kept: Kept,
    ladder: Ladder,
    /// The one that runs; there is none only between two.
    generation: Option<Generation>,
    /// How many were started.
    generations: u64,
    /// Why machined was started the last time.
    start: StartReason,
    /// When machined must have reported healthy, until it has.
    deadline: Option<Instant>,
}

/// What stays the same from the kernel's start to its end.
pub(crate) struct Machine {
    pub(crate) home: Home,
    pub(crate) reaper: Reaper,
    pub(crate) watchdog: Watchdog,
    pub(crate) fresh: Fingerprint,
    pub(crate) kernel_boot_id: BootId,
    pub(crate) started: Instant,
    /// The time to report healthy, for every start but those that `next` gives another.
    pub(crate) patience: Duration,
}

impl Supervisor {
    pub(crate) fn new(machine: Machine, image: Image) -> Self {
        Self {
            machine,
            image,
            previous: None,
            kept: Kept::default(),
            ladder: Ladder::new(),
            generation: None,
            generations: 0,
            start: StartReason::Boot,
            deadline: None,
        }
    }

    /// Starts the first generation and goes on for ever.
    pub(crate) fn run(mut self) -> ! {
        let patience = self.machine.patience;
        self.begin(StartReason::Boot, None, patience);
        loop {
            self.wait();
            self.listen();
            self.reap();
            self.watch_deadline();
            self.machine.watchdog.feed();
        }
    }

    fn wait(&self) {
        let until_late = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = until_late
            .unwrap_or(watchdog::INTERVAL)
            .min(watchdog::INTERVAL);
        let link = self
            .generation
            .as_ref()
            .filter(|generation| generation.machined.is_some());
        self.machine.reaper.wait(
            link.and_then(|generation| generation.link.descriptor()),
            timeout,
        );
    }

    fn listen(&mut self) {
        for _ in 0..MESSAGES {
            let Some(generation) = &mut self.generation else {
                return;
            };
            match generation.link.receive() {
                Received::Nothing => return,
                // Without its link it is of no use; its death is what the ladder decides about.
                Received::Closed => return generation.kill_machined(),
                Received::Packet(Ok(request), descriptors) => self.serve(request, descriptors),
                Received::Packet(Err(error), _) => {
                    let verb = error.verb.as_ref().map_or("-", Line::as_str);
                    complain!("refused '{verb}': {error}");
                    generation.link.refuse(&error);
                }
            }
        }
    }

    fn reap(&mut self) {
        let Some(generation) = &self.generation else {
            return;
        };
        let number = generation.number;
        let machined = generation.machined;
        let mut death = None;
        let mut orphans = Vec::new();
        while let Reaped::Exit(pid, status) = self.machine.reaper.reap() {
            if Some(pid) == machined {
                death = Some(status)
            } else {
                orphans.push((pid, status))
            }
        }
        if let Some(status) = death {
            self.bury_machined(number, status);
        }
        // After a restart the exits belong to the new machined, after the end of the generation to nobody.
        if let Some(generation) = self
            .generation
            .as_mut()
            .filter(|generation| generation.number == number)
        {
            for (pid, status) in orphans {
                generation
                    .link
                    .exited(pid.as_raw_nonzero().get(), status.as_raw());
            }
        }
    }

    fn bury_machined(&mut self, number: u64, status: WaitStatus) {
        let same = |generation: &&mut Generation| generation.number == number;
        if let Some(generation) = self.generation.as_mut().filter(same) {
            generation.machined = None;
        }
        // Its last words may be a request, even one that ends the generation.
        self.listen();
        if self
            .generation
            .as_ref()
            .is_some_and(|generation| generation.number == number)
        {
            self.fail(Event::Died, format_args!("machined {}", describe(status)));
        }
    }

    fn watch_deadline(&mut self) {
        if self
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now())
        {
            self.deadline = None;
            self.fail(Event::Late, "machined did not report healthy in time");
        }
    }

    fn serve(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
        let verb = request.verb();
        let result = match request {
            Request::Hello => return self.welcome(),
            Request::Healthy { boot_id } => self.healthy(&boot_id),
            Request::Keep { name, scope } => {
                only(descriptors).and_then(|fd| self.kept.keep(name, scope, fd))
            }
            Request::Drop { name } => self.kept.drop(&name),
            Request::Next {
                blake3,
                version,
                deadline,
            } => {
                let image = only(descriptors).and_then(|fd| Image::of_memfd(fd, blake3, version));
                match image.and_then(|image| self.prepare(image)) {
                    Ok(next) => {
                        return self.swap(next, Duration::from_secs(deadline.secs().into()));
                    }
                    Err(failure) => Err(failure),
                }
            }
            Request::GiveUp { reason } => {
                self.answer(verb, &Ok(()));
                return self.fail(Event::GaveUp, format_args!("machined gave up: {reason}"));
            }
            Request::Reboot => self.end_machine_for(verb, RebootCommand::Restart),
            Request::Poweroff => self.end_machine_for(verb, RebootCommand::PowerOff),
            Request::Halt => self.end_machine_for(verb, RebootCommand::Halt),
            Request::Kexec => match fs::read_to_string("/sys/kernel/kexec_loaded") {
                Ok(loaded) if loaded.trim() == "1" => {
                    self.end_machine_for(verb, RebootCommand::Kexec)
                }
                _ => Err(Failure::new(
                    ErrorCode::Kernel,
                    "no kernel is loaded for kexec",
                )),
            },
        };
        if let Err(failure) = &result {
            complain!("refused '{verb}': {failure}");
        }
        self.answer(verb, &result);
    }

    fn answer(&self, verb: &str, result: &Result<()>) {
        if let Some(generation) = &self.generation {
            generation.link.answer(verb, result);
        }
    }

    fn welcome(&mut self) {
        let Some(generation) = &mut self.generation else {
            return;
        };
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let welcome = Reply::Welcome(Welcome {
            generation: generation.number,
            boot_id: generation.boot_id.clone(),
            kernel_boot_id: self.machine.kernel_boot_id.clone(),
            start: self.start.clone(),
            deadline: left.map_or(0, |left| u32::try_from(left.as_secs()).unwrap_or(u32::MAX)),
            kept: self.kept.names(),
        });
        generation.link.welcome(&welcome, &self.kept.descriptors());
    }

    fn healthy(&mut self, boot_id: &BootId) -> Result<()> {
        match &self.generation {
            Some(generation) if generation.boot_id == *boot_id => {}
            _ => {
                return Err(Failure::new(
                    ErrorCode::OtherBootId,
                    "this is the boot id of another generation",
                ));
            }
        }
        self.ladder.decide(Event::Healthy, self.now());
        self.deadline = None;
        self.previous = None;
        say!("generation {} is healthy and committed", self.generations);
        Ok(())
    }

    /// Verifies and mounts a next image beside the running one, and asks the ladder.
    fn prepare(&mut self, image: Image) -> Result<(Image, MountedImage)> {
        let mounted = image.mount()?;
        match self.ladder.decide(Event::NextReady, self.now()) {
            Verdict::Swap => Ok((image, mounted)),
            _ => Err(Failure::new(
                ErrorCode::WrongState,
                "this generation has not reported healthy yet",
            )),
        }
    }

    fn swap(&mut self, (image, mounted): (Image, MountedImage), deadline: Duration) {
        self.answer("next", &Ok(()));
        self.previous = Some(std::mem::replace(&mut self.image, image));
        self.replace(StartReason::Next, Some(mounted), deadline);
    }

    /// Something failed: says so, asks the ladder for the next step and takes it. A step that fails asks again, and
    /// the ladder ends with a reboot.
    fn fail(&mut self, event: Event, cause: impl Display) {
        let cause = Line::lossy(&cause.to_string());
        let generation = self.generations;
        let patience = self.machine.patience;
        match self.ladder.decide(event, self.now()) {
            Verdict::Restart => {
                complain!("generation {generation}: {cause}; starting machined again");
                self.restart(cause);
            }
            Verdict::StartFresh => {
                complain!(
                    "generation {generation}: {cause}; starting its image again in a fresh generation"
                );
                self.replace(StartReason::Fresh { cause }, None, patience);
            }
            Verdict::GoBack => {
                let Some(previous) = self.previous.take() else {
                    self.reboot(format_args!("{cause}, and no previous image is held"));
                };
                let failed = std::mem::replace(&mut self.image, previous);
                let failed_version = failed.version.unwrap_or_else(|| Line::lossy(""));
                complain!(
                    "generation {generation}: {cause}; going back from {failed_version} to the previous image"
                );
                self.replace(
                    StartReason::Rollback {
                        cause,
                        failed_version,
                    },
                    None,
                    patience,
                );
            }
            // The ladder answers a failure with none of the first three; if it did, a reboot would be right.
            Verdict::Commit | Verdict::Swap | Verdict::Refuse | Verdict::Reboot => {
                self.reboot(format_args!("generation {generation}: {cause}"));
            }
        }
    }

    fn restart(&mut self, cause: Line) {
        let Some(generation) = &mut self.generation else {
            return;
        };
        match generation.restart_machined(&self.machine.home) {
            Ok(()) => {
                self.start = StartReason::Restart { cause };
                let late = || Instant::now() + self.machine.patience;
                // A generation that is not committed gets no more time by restarts.
                self.deadline.get_or_insert_with(late);
            }
            Err(failure) => self.fail(Event::Unstartable, failure),
        }
    }

    /// Ends the running generation and begins another one.
    fn replace(&mut self, start: StartReason, mounted: Option<MountedImage>, deadline: Duration) {
        match self.end_generation(mounted.as_ref()) {
            Ok(()) => self.begin(start, mounted, deadline),
            Err(failure) => self.fail(Event::Unclean, failure),
        }
    }

    fn begin(&mut self, start: StartReason, mounted: Option<MountedImage>, deadline: Duration) {
        self.generations += 1;
        self.start = start;
        self.deadline = Some(Instant::now() + deadline);
        let mounted = mounted.map_or_else(|| self.image.mount(), Ok);
        match mounted
            .and_then(|image| Generation::start(self.generations, &image, &self.machine.home))
        {
            Ok(generation) => self.generation = Some(generation),
            Err(failure) => self.fail(Event::Unstartable, failure),
        }
    }

    /// Ends the running generation and brings the machine back to what it was before the first. `next` is an image
    /// that is mounted already.
    fn end_generation(&mut self, next: Option<&MountedImage>) -> Result<()> {
        let Some(generation) = self.generation.take() else {
            return Ok(());
        };
        let machine = &mut self.machine;
        self.kept.end_generation();
        generation.end(&machine.home, &machine.reaper, &mut machine.watchdog)?;
        for sysctl in machine.fresh.changed_sysctls() {
            sysctl.restore()?;
        }
        let begin = Instant::now();
        loop {
            match machine
                .fresh
                .compare(next.map(|image| image.device.as_str()))
            {
                Err(failure) if begin.elapsed() > SETTLING => return Err(failure),
                Err(_) => sleep(Duration::from_millis(10)),
                Ok(()) => return Ok(()),
            }
            remove_cgroups(Path::new(CGROUPS));
        }
    }

    fn reboot(&mut self, cause: impl Display) -> ! {
        complain!("{cause}; rebooting in {} seconds", READING.as_secs());
        sleep(READING);
        self.end_machine(RebootCommand::Restart)
    }

    fn end_machine_for(&mut self, verb: &str, command: RebootCommand) -> ! {
        say!("machined asks for {verb}");
        self.answer(verb, &Ok(()));
        self.end_machine(command)
    }

    /// Ends everything that runs, then the machine.
    fn end_machine(&mut self, command: RebootCommand) -> ! {
        let machine = &mut self.machine;
        let ended = self
            .generation
            .take()
            .map(|it| it.end(&machine.home, &machine.reaper, &mut machine.watchdog));
        if let Some(Err(failure)) = ended {
            complain!("{failure}; going on");
        }
        if matches!(command, RebootCommand::Halt) {
            machine.watchdog.stop();
        }
        // In a thread of its own: a disk that does not answer must not keep the machine from ending.
        let writing = std::thread::spawn(rustix::fs::sync);
        let begin = Instant::now();
        while !writing.is_finished() && begin.elapsed() < DYING {
            sleep(Duration::from_millis(5));
        }
        end_kernel(command)
    }

    fn now(&self) -> Duration {
        self.machine.started.elapsed()
    }
}

/// Ends the kernel; there is nothing else that PID 1 could do.
pub(crate) fn end_kernel(command: RebootCommand) -> ! {
    for command in [command, RebootCommand::Restart] {
        if let Err(error) = reboot(command) {
            complain!("the kernel refuses {command:?}: {error}");
        }
    }
    loop {
        // Without food the watchdog tries, too.
        sleep(READING);
        let _ = reboot(RebootCommand::Restart);
    }
}
