//! A container on this machine: its extensions, its plan, and kubernetes-init in it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use instar_kubernetes_plan::{PLAN, Plan, PlannedExtension, STATUS, Status};

/// Limit on each wait of a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program that says that it is ready, and stays.
pub(crate) const TELL_READY: &str = "#!/usr/bin/perl\nuse Socket;\nsocket(S, AF_UNIX, SOCK_DGRAM, 0);\n\
    send(S, \"READY=1\", 0, sockaddr_un($ENV{NOTIFY_SOCKET})) or die $!;\nsleep 1000;\n";

/// The command of a service that tells a word and stays.
pub(crate) fn tell(word: &str) -> String {
    format!("/bin/sh -c 'echo {word} >> /instar/told; exec sleep 1000'")
}

/// The files of an extension.
pub(crate) struct Extension {
    place: String,
    files: BTreeMap<String, String>,
}

impl Extension {
    pub(crate) fn new(name: &str) -> Self {
        let extension = Extension {
            place: name.to_owned(),
            files: BTreeMap::new(),
        };
        let release = format!("usr/lib/extension-release.d/extension-release.{name}");
        extension.file(&release, "ID=_any\n")
    }

    /// Its tree has another name.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.place = place.to_owned();
        self
    }

    pub(crate) fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    /// Adds a service that the extension starts: lines of its section Unit, and of its section Service.
    pub(crate) fn service(self, name: &str, unit: &str, service: &str) -> Self {
        let units = "usr/lib/systemd/system";
        let text = format!("[Unit]\n{unit}\n[Service]\n{service}");
        let upholds = format!("[Unit]\nUpholds={name}.service\n");
        self.file(&format!("{units}/{name}.service"), &text).file(
            &format!("{units}/multi-user.target.d/{name}.conf"),
            &upholds,
        )
    }
}

/// The files of a container.
pub(crate) struct Node {
    folder: tempfile::TempDir,
    variables: RefCell<BTreeMap<String, BTreeMap<String, String>>>,
    restarts: RefCell<BTreeMap<String, u64>>,
    shutdown_seconds: Cell<Option<u64>>,
    name: String,
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        let node = Node {
            folder: tempfile::tempdir().unwrap(),
            variables: RefCell::default(),
            restarts: RefCell::default(),
            shutdown_seconds: Cell::default(),
            name: name.to_owned(),
        };
        fs::create_dir_all(node.directory().join("trees")).unwrap();
        node
    }

    /// The directory that is /instar in the container.
    pub(crate) fn directory(&self) -> PathBuf {
        self.folder.path().join("instar")
    }

    pub(crate) fn extension(&self, extension: Extension) {
        let tree = self.directory().join("trees").join(extension.place);
        for (path, text) in extension.files {
            write_program(&tree.join(path), &text);
        }
    }

    /// Adds a program of the base.
    pub(crate) fn base(&self, path: &str, text: &str) {
        write_program(&self.directory().join("base").join(path), text);
    }

    /// Adds a variable of a service to the next plan.
    pub(crate) fn variable(&self, service: &str, name: &str, value: &str) {
        let mut variables = self.variables.borrow_mut();
        let of_service = variables.entry(service.to_owned()).or_default();
        of_service.insert(name.to_owned(), value.to_owned());
    }

    /// The next plan asks for one more restart of a service.
    pub(crate) fn restart(&self, service: &str) {
        *self
            .restarts
            .borrow_mut()
            .entry(service.to_owned())
            .or_default() += 1;
    }

    /// In the next plan kubelet has so long to end its pods.
    pub(crate) fn shutdown_seconds(&self, seconds: u64) {
        self.shutdown_seconds.set(Some(seconds));
    }

    /// Writes a plan with these extensions: NAME, or NAME=TREE.
    pub(crate) fn plan(&self, extensions: &[&str]) {
        let planned = extensions.iter().map(|text| {
            let (name, tree) = text.split_once('=').unwrap_or((text, text));
            PlannedExtension {
                name: name.to_owned(),
                tree: format!("/instar/trees/{tree}"),
            }
        });
        let plan = Plan {
            node: self.name.clone(),
            extensions: planned.collect(),
            environment: self.variables.borrow().clone(),
            restarts: self.restarts.borrow().clone(),
            shutdown_seconds: self.shutdown_seconds.get(),
            reboot_required: None,
        };
        self.write_plan(&serde_json::to_string(&plan).unwrap());
    }

    pub(crate) fn write_plan(&self, text: &str) {
        let part = self.directory().join("part");
        fs::write(&part, text).unwrap();
        fs::rename(part, self.directory().join(PLAN)).unwrap();
    }

    /// The lines that services have told.
    pub(crate) fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(self.directory().join("told")).unwrap_or_default();
        told.lines().map(str::to_owned).collect()
    }

    /// Starts kubernetes-init.
    pub(crate) fn start(&self) -> Running<'_> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/container.sh");
        let output = fs::File::create(self.folder.path().join("output")).unwrap();
        let mut command = as_root("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh"])
            .arg(script);
        command.arg(self.folder.path().join("cgroups"));
        command.arg(self.folder.path().join("root"));
        command.arg(self.directory());
        command.arg(env!("CARGO_BIN_EXE_kubernetes-init"));
        command.stdin(Stdio::null());
        command.stderr(output.try_clone().unwrap()).stdout(output);
        Running {
            node: self,
            child: command.spawn().unwrap(),
        }
    }
}

/// kubernetes-init in its container; everything in it ends with this value.
pub(crate) struct Running<'a> {
    node: &'a Node,
    child: Child,
}

impl Running<'_> {
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.node.folder.path().join("output")).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        let text = fs::read(self.node.directory().join(STATUS)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Waits until the status is as a test expects, and returns it.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut(&Status) -> bool) -> Status {
        let started = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            if started.elapsed() > PATIENCE {
                panic!("not in time: {what}\n{status:#?}\n{}", self.output());
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// The number of kubernetes-init on this machine.
    fn init(&self) -> String {
        let mut pid = self.child.id().to_string();
        loop {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name == "init\n" {
                return pid;
            }
            let children = children.unwrap_or_default();
            let child = children.split_whitespace().next();
            pid = child.expect("kubernetes-init does not run").to_owned();
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = as_root("kill")
            .args(["-s", signal])
            .arg(self.init())
            .status();
        assert!(sent.unwrap().success());
    }

    /// Runs a command in the container, in which PID stands for the main process of a service, and returns its output.
    pub(crate) fn command(&self, service: &str, command: &str) -> String {
        let pid = self.status().services[service]
            .pid
            .expect("it does not run");
        let command = command.replace("PID", &pid.to_string());
        let mut inside = as_root("nsenter");
        inside.args([
            "-t",
            &self.init(),
            "--all",
            "--root",
            "--wd",
            "sh",
            "-c",
            &command,
        ]);
        let done = inside.output().unwrap();
        assert!(done.status.success(), "{command}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Ends everything, and returns the exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        let started = Instant::now();
        while started.elapsed() < 2 * PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            sleep(Duration::from_millis(50));
        }
        panic!("it does not end\n{}", self.output());
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may have ended just now.
            let _ = as_root("kill")
                .args(["-s", "KILL"])
                .arg(self.init())
                .status();
            // Nothing is left to do if it fails.
            let _ = self.child.wait();
        }
    }
}

fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(path, mode).unwrap();
}

fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}
