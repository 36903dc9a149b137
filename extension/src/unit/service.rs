//! One service of an extension: a unit with its drop-ins.
//!
//! Every directive is served, or of no effect here by design, or it is an error that names it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::words::{Named, split, with_specifiers};
use super::{Assignment, Command};

/// How a service tells that it runs (`Type=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceKind {
    /// It runs once its process has been made.
    #[default]
    Simple,
    /// It runs once its program has been started.
    Exec,
    /// It says so itself, on the socket that `NOTIFY_SOCKET` names.
    Notify,
}

/// When a service is started again after its end (`Restart=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// Never.
    #[default]
    No,
    /// When it failed.
    OnFailure,
    /// Always.
    Always,
}

/// Which processes a stop ends (`KillMode=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KillMode {
    /// All of its cgroup.
    #[default]
    ControlGroup,
    /// Its main process alone: containers under it go on.
    Process,
    /// SIGTERM to its main process, SIGKILL to all.
    Mixed,
}

/// A limit on a resource; `None` is no limit.
pub type Limit = Option<u64>;

/// A service, as its unit and drop-ins define it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceUnit {
    /// `kubelet.service`
    pub name: String,
    /// Its description.
    pub description: String,
    /// How it tells that it runs.
    pub kind: ServiceKind,
    /// Commands that run before it, one after the other.
    pub start_pre: Vec<Command>,
    /// Its command.
    pub start: Option<Command>,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// Files with more of it; those whose flag is true may be missing.
    pub environment_files: Vec<(String, bool)>,
    /// When it is started again.
    pub restart: Restart,
    /// The pause before that.
    pub restart_pause: Duration,
    /// Which processes a stop ends.
    pub kill_mode: KillMode,
    /// Whether it makes cgroups below its own.
    pub delegate: bool,
    /// Limits of its processes by the names of setrlimit(2) without `RLIMIT_`: `NOFILE`.
    pub limits: BTreeMap<String, Limit>,
    /// Limit on its tasks.
    pub tasks_max: Limit,
    /// The units that start before it, if they start at all.
    pub after: Vec<String>,
    /// The units that start with it.
    pub wants: Vec<String>,
}

/// A setting of a unit that is not served: `PLACE: setting`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what} is not served")]
pub struct Unserved {
    /// `FILE:LINE`
    pub place: String,
    /// The directive, or the part of its value.
    pub what: String,
}

/// Directives that change nothing here, and why.
const OF_NO_EFFECT: [(&str, &str); 9] = [
    // For people.
    ("Unit", "Documentation"),
    // Enabling is systemd's; a drop-in of multi-user.target starts a service here.
    ("Install", "WantedBy"),
    ("Install", "Alias"),
    ("Install", "RequiredBy"),
    // Its restarts are never given up, which these ask for or would limit.
    ("Unit", "StartLimitInterval"),
    ("Unit", "StartLimitIntervalSec"),
    ("Unit", "StartLimitBurst"),
    ("Service", "StartLimitInterval"),
    // The scores of all workloads are the machine's.
    ("Service", "OOMScoreAdjust"),
];

/// The pause before a restart without `RestartSec=` (systemd.service(5)).
const USUAL_PAUSE: Duration = Duration::from_millis(100);

impl ServiceUnit {
    /// The service of these assignments: the unit's, then those of its drop-ins in their order.
    ///
    /// # Errors
    /// All that is not served.
    pub(crate) fn of(
        name: &str,
        host: &str,
        assignments: &[Assignment],
    ) -> Result<Self, Vec<Unserved>> {
        let mut service = ServiceUnit {
            name: name.to_owned(),
            restart_pause: USUAL_PAUSE,
            ..ServiceUnit::default()
        };
        let named = Named { unit: name, host };
        let mut unserved = Vec::new();
        for assignment in assignments {
            let value = with_specifiers(&assignment.value, named);
            let taken = value.and_then(|value| service.take(assignment, &value));
            if let Err(what) = taken {
                let Assignment { place, key, .. } = assignment;
                unserved.push(Unserved {
                    place: place.clone(),
                    what: match what.is_empty() {
                        true => format!("{key}="),
                        false => format!("{key}=: {what}"),
                    },
                });
            }
        }
        if service.start.is_none() && unserved.is_empty() {
            unserved.push(Unserved {
                place: name.to_owned(),
                what: "a service without ExecStart=".to_owned(),
            });
        }
        match unserved.is_empty() {
            true => Ok(service),
            false => Err(unserved),
        }
    }

    /// Takes one assignment. An error is the part of the value that is not served, or empty if it is the directive.
    fn take(&mut self, assignment: &Assignment, value: &str) -> Result<(), String> {
        let directive = (assignment.section.as_str(), assignment.key.as_str());
        match directive {
            ("Unit", "Description") => self.description = value.to_owned(),
            ("Unit", "After") => add(&mut self.after, value)?,
            ("Unit", "Wants") => add(&mut self.wants, value)?,
            ("Service", "Type") => {
                self.kind = match value {
                    "simple" | "" => ServiceKind::Simple,
                    "exec" => ServiceKind::Exec,
                    "notify" => ServiceKind::Notify,
                    other => return Err(other.to_owned()),
                };
            }
            ("Service", "ExecStartPre") => match value {
                "" => self.start_pre.clear(),
                line => self.start_pre.push(Command::parse(line)?),
            },
            ("Service", "ExecStart") => match (value, &self.start) {
                ("", _) => self.start = None,
                (_, Some(_)) => return Err("a second command".to_owned()),
                (line, None) => self.start = Some(Command::parse(line)?),
            },
            ("Service", "Environment") => self.take_environment(value)?,
            ("Service", "EnvironmentFile") => match (value, value.strip_prefix('-')) {
                ("", _) => self.environment_files.clear(),
                (_, Some(path)) => self.environment_files.push((path.to_owned(), true)),
                (path, None) => self.environment_files.push((path.to_owned(), false)),
            },
            ("Service", "Restart") => {
                self.restart = match value {
                    "no" | "" => Restart::No,
                    "on-failure" => Restart::OnFailure,
                    "always" => Restart::Always,
                    other => return Err(other.to_owned()),
                };
            }
            ("Service", "RestartSec") => self.restart_pause = time(value)?,
            ("Service", "KillMode") => {
                self.kill_mode = match value {
                    "control-group" | "" => KillMode::ControlGroup,
                    "process" => KillMode::Process,
                    "mixed" => KillMode::Mixed,
                    other => return Err(other.to_owned()),
                };
            }
            ("Service", "Delegate") => {
                self.delegate = match value {
                    "yes" | "true" | "on" | "1" => true,
                    "no" | "false" | "off" | "0" | "" => false,
                    other => return Err(other.to_owned()),
                };
            }
            ("Service", "TasksMax") => self.tasks_max = limit(value)?,
            ("Service", key) if key.starts_with("Limit") => {
                let name = key.trim_start_matches("Limit").to_owned();
                self.limits.insert(name, limit(value)?);
            }
            directive if OF_NO_EFFECT.contains(&directive) => {}
            _ => return Err(String::new()),
        }
        Ok(())
    }

    fn take_environment(&mut self, value: &str) -> Result<(), String> {
        if value.is_empty() {
            self.environment.clear();
        }
        for word in split(value)? {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word:?}, which is no NAME=VALUE"))?;
            self.environment.insert(name.to_owned(), value.to_owned());
        }
        Ok(())
    }
}

/// Adds units to a list; an empty value clears it.
fn add(list: &mut Vec<String>, value: &str) -> Result<(), String> {
    if value.is_empty() {
        list.clear();
    }
    list.extend(split(value)?);
    Ok(())
}

/// A limit: a number, perhaps with a suffix to the base 1024, or `infinity`.
fn limit(value: &str) -> Result<Limit, String> {
    if value == "infinity" {
        return Ok(None);
    }
    let (digits, factor) = match value.as_bytes().last() {
        Some(b'K') => (&value[..value.len() - 1], 1 << 10),
        Some(b'M') => (&value[..value.len() - 1], 1 << 20),
        Some(b'G') => (&value[..value.len() - 1], 1 << 30),
        _ => (value, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    let number = number.and_then(|number| number.checked_mul(factor));
    number.map(Some).ok_or_else(|| value.to_owned())
}

/// A span of time: seconds, or numbers with the units `ms`, `s`, `min` (systemd.time(7)).
fn time(value: &str) -> Result<Duration, String> {
    let refused = || value.to_owned();
    let parts = value.split_whitespace().map(|part| {
        let end = part.find(|next: char| !next.is_ascii_digit());
        let (number, unit) = part.split_at(end.unwrap_or(part.len()));
        let number: u64 = number.parse().map_err(|_| refused())?;
        match unit {
            "ms" => Ok(Duration::from_millis(number)),
            "" | "s" | "sec" => Ok(Duration::from_secs(number)),
            "min" | "m" => number
                .checked_mul(60)
                .map(Duration::from_secs)
                .ok_or_else(refused),
            _ => Err(refused()),
        }
    });
    let mut sum = None;
    for part in parts {
        let so_far: Duration = sum.unwrap_or_default();
        sum = Some(so_far.checked_add(part?).ok_or_else(refused)?);
    }
    sum.ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::parse;
    use super::*;

    fn service(texts: &[(&str, &str)]) -> Result<ServiceUnit, Vec<String>> {
        let assignments = texts
            .iter()
            .flat_map(|(file, text)| parse(file, text).unwrap());
        let assignments: Vec<_> = assignments.collect();
        let service = ServiceUnit::of("agent.service", "node-1", &assignments);
        service.map_err(|all| all.iter().map(Unserved::to_string).collect())
    }

    #[test]
    fn drop_ins_add_and_clear() {
        let unit = "[Unit]\nDescription=An agent\nWants=network-online.target\nAfter=network-online.target\n\
            [Service]\nType=notify\nExecStartPre=/bin/a\nExecStart=/usr/bin/agent\nEnvironment=A=1 \"B=two words\"\nRestart=always\n\
            RestartSec=10\nLimitNOFILE=1048576\nLimitNPROC=infinity\nTasksMax=infinity\nDelegate=yes\nKillMode=process\n\
            StartLimitInterval=0\n[Install]\nWantedBy=multi-user.target\n";
        let drop_in = "[Service]\nEnvironment=A=3\nEnvironmentFile=-/etc/default/%N\nEnvironmentFile=/etc/agent\n\
            ExecStartPre=-/bin/b $A\nExecStart=\nExecStart=/usr/bin/agent --host %H ${B}\n";
        let service = service(&[("agent.service", unit), ("10.conf", drop_in)]).unwrap();
        assert_eq!(service.description, "An agent");
        assert_eq!(service.kind, ServiceKind::Notify);
        assert_eq!(service.start_pre.len(), 2);
        let start = service.start.unwrap();
        assert_eq!(
            start.arguments(&service.environment),
            ["--host", "node-1", "two words"]
        );
        assert_eq!(service.environment["A"], "3");
        assert_eq!(
            service.environment_files,
            [
                ("/etc/default/agent".to_owned(), true),
                ("/etc/agent".to_owned(), false)
            ]
        );
        assert_eq!(
            (service.restart, service.restart_pause),
            (Restart::Always, Duration::from_secs(10))
        );
        assert_eq!(service.limits["NOFILE"], Some(1_048_576));
        assert_eq!(service.limits["NPROC"], None);
        assert_eq!(service.kill_mode, KillMode::Process);
        assert!(service.delegate);
        assert_eq!(service.after, ["network-online.target"]);
    }

    #[test]
    fn what_is_not_served_is_named_with_its_place() {
        let unit = "[Unit]\nConditionPathExists=/x\n[Service]\nType=forking\nExecStart=/a\nExecStart=/b\nProtectSystem=strict\n\
            Restart=on-watchdog\nRestartSec=soon\nTasksMax=many\nEnvironment=A\nExecStartPre=!/c\n[Timer]\nOnBootSec=1\n";
        let unserved = service(&[("agent.service", unit)]).unwrap_err();
        assert_eq!(
            unserved,
            [
                "agent.service:2: ConditionPathExists= is not served",
                "agent.service:4: Type=: forking is not served",
                "agent.service:6: ExecStart=: a second command is not served",
                "agent.service:7: ProtectSystem= is not served",
                "agent.service:8: Restart=: on-watchdog is not served",
                "agent.service:9: RestartSec=: soon is not served",
                "agent.service:10: TasksMax=: many is not served",
                "agent.service:11: Environment=: \"A\", which is no NAME=VALUE is not served",
                "agent.service:12: ExecStartPre=: the prefix '!' of a command is not served",
                "agent.service:14: OnBootSec= is not served",
            ]
        );
        let nothing = service(&[("agent.service", "[Service]\n")]).unwrap_err();
        assert_eq!(
            nothing,
            ["agent.service: a service without ExecStart= is not served"]
        );
    }

    #[test]
    fn spans_of_time_and_limits_are_read() {
        assert_eq!(time("1min 30s").unwrap(), Duration::from_secs(90));
        assert_eq!(time("500ms").unwrap(), Duration::from_millis(500));
        for wrong in [
            "",
            "soon",
            "5h",
            "99999999999999999999",
            "18446744073709551615min",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(limit("64K").unwrap(), Some(65_536));
        for wrong in ["", "-1", "K", "18446744073709551615G", "10%"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
