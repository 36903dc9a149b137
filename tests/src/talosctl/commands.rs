//! The commands of one call or two: the request, the check of the answer, and the output.

use std::time::Duration;

use super::screen::{Screen, Step, Stop, needed};
use super::session::Release;
use super::tag::Tag;
use super::wait;
use super::wire::Fields;
use super::{Talosctl, Words};

/// Timeout for the restoring of a snapshot, with the pull of an image.
const RECOVERY: Duration = Duration::from_secs(600);

/// Fields for `LogsRequest.driver` and its like: containers of Kubernetes are requested by namespace and driver.
fn of_containers(words: &mut Words<'_>) -> Fields {
    match words.flag("-k") {
        true => Fields::none().text(1, "k8s.io").number(2, 1),
        false => Fields::none().text(1, "system"),
    }
}

impl Talosctl<'_> {
    /// Runs a command by its name; the further words are its arguments.
    pub(super) async fn execute(&self, command: &str, file: &str, screen: &mut Screen) -> Step {
        let mut all: Vec<&str> = command.split_whitespace().collect();
        let name = match all.is_empty() {
            true => "",
            false => all.remove(0),
        };
        let mut words = Words(all);
        match name {
            "version" => self.version(screen).await,
            "service" => self.service(words, screen).await,
            "logs" => self.logs(words, screen).await,
            "dmesg" => self.dmesg(words, screen).await,
            "events" => self.events(words, screen).await,
            "containers" => self.containers(words, screen).await,
            "stats" => self.stats(words, screen).await,
            "processes" => self.processes(screen).await,
            "memory" => self.memory(screen).await,
            "mounts" => self.mounts(screen).await,
            "list" => self.list(words, screen).await,
            "read" => self.read(words, screen).await,
            "copy" => self.copy(words, screen).await,
            "usage" => self.usage(words, screen).await,
            "netstat" => self.netstat(words, screen).await,
            "time" => self.time(words, screen).await,
            "cgroups" => self.cgroups(screen).await,
            "image" => self.image(words, screen).await,
            "get" => self.get(words, screen).await,
            "apply-config" => self.apply_config(words, file, screen).await,
            "patch" | "edit" => self.edit(name, words, file, screen).await,
            "meta" => self.meta(words, screen).await,
            "wipe" => self.wipe(words, screen).await,
            "rollback" => self.plain("/machine.MachineService/Rollback").await,
            "reboot" => self.reboot(words, screen).await,
            "shutdown" => self.shutdown(words, screen).await,
            "reset" => self.reset(words, screen).await,
            "upgrade" => self.upgrade(words, screen).await,
            "health" => self.health(words, screen).await,
            "dashboard" => self.dashboard(screen).await,
            "pcap" => self.pcap(words, screen).await,
            "support" => self.support(screen).await,
            "kubeconfig" => self.kubeconfig().await,
            "bootstrap" => self.bootstrap(words).await,
            "etcd" => self.etcd(words).await,
            "config" => self.new_config(words, screen).await,
            "inspect" => self.inspect(screen).await,
            "restart" => self.restart(words).await,
            "diskfree" => self.disk_free(screen).await,
            "rotate-ca" => self.rotate_ca(screen).await,
            "upgrade-k8s" => {
                self.look_at_version(screen).await?;
                self.kubeconfig().await
            }
            "debug" => self.debug(words.0.pop().unwrap_or_default(), screen).await,
            _ => Err(Stop::Failed(format!("unknown command {command:?}"))),
        }
    }

    /// Calls a method with an empty request; prints nothing.
    async fn plain(&self, method: &'static str) -> Step {
        self.session.element(method, Fields::none()).await?;
        Ok(())
    }

    /// Asks for the version, as most commands do first. The older release goes on without an answer.
    pub(super) async fn look_at_version(&self, screen: &mut Screen) -> Step {
        match self.version_of_server(screen).await {
            Err(Stop::Refused(_)) if self.session.release == Release::V1_13 => Ok(()),
            looked => looked.map(drop),
        }
    }

    /// Returns the server's version, with a warning if it is older than the client; none if the answer is empty.
    pub(super) async fn version_of_server(&self, screen: &mut Screen) -> Step<Option<Tag>> {
        let answer = self
            .session
            .call("/machine.MachineService/Version", Fields::none());
        let Some(element) = answer.await?.messages_of(1).pop() else {
            return Ok(None);
        };
        let version = needed(element.message_of(2), "version")?;
        let text = version.text_of(1);
        let Some(tag) = Tag::parse(&text) else {
            return Err(Stop::Failed(format!("{text:?} is no version")));
        };
        let own = self.session.release.version();
        if Tag::parse(own).is_some_and(|own| tag.is_below(&own)) {
            screen.complain(&format!("WARNING: {text} is older than the client, {own}"));
        }
        Ok(Some(tag))
    }

    async fn version(&self, screen: &mut Screen) -> Step {
        let answer = self
            .session
            .call("/machine.MachineService/Version", Fields::none())
            .await?;
        for element in answer.messages_of(1) {
            let version = needed(element.message_of(2), "version")?;
            let platform = element.message_of(3).unwrap_or_default();
            let rbac = element.message_of(4).is_some_and(|features| features.is(1));
            screen.line(&format!(
                "Tag: {} SHA: {} Arch: {} Platform: {} Enabled: {}",
                version.text_of(1),
                version.text_of(2),
                version.text_of(6),
                platform.text_of(1),
                if rbac { "RBAC" } else { "" }
            ))?;
        }
        Ok(())
    }

    async fn service(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let (id, verb) = (words.0.first().copied(), words.0.get(1).copied());
        let method = match verb {
            None | Some("status") => None,
            Some("start") => Some("/machine.MachineService/ServiceStart"),
            Some("stop") => Some("/machine.MachineService/ServiceStop"),
            Some("restart") => Some("/machine.MachineService/ServiceRestart"),
            Some(other) => return Err(Stop::Failed(format!("no such verb: {other}"))),
        };
        words.0.clear();
        if let Some(method) = method {
            let asked = Fields::none().text(1, id.unwrap_or_default());
            let element = self.session.element(method, asked).await?;
            return screen.line(&element.text_of(2));
        }
        let listed = self
            .session
            .element("/machine.MachineService/ServiceList", Fields::none())
            .await?;
        let mut seen = false;
        for service in listed.messages_of(2) {
            let events = needed(service.message_of(3), "events")?.messages_of(1);
            let health = needed(service.message_of(4), "health")?;
            let name = service.text_of(1);
            if id.is_some_and(|id| id != name) {
                continue;
            }
            seen = true;
            let health = match (health.is(1), health.is(2)) {
                (true, _) => "?",
                (false, true) => "OK",
                (false, false) => "Fail",
            };
            let last = events.last().map(|event| event.text_of(1));
            let last = last.unwrap_or_default();
            screen.line(&format!("{name} {} {health} {last}", service.text_of(2)))?;
        }
        match id {
            Some(id) if !seen => Err(Stop::Failed(format!("service {id:?} is not registered"))),
            _ => Ok(()),
        }
    }

    async fn logs(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let follow = words.flag("-f");
        let tail = words.number("--tail").unwrap_or(-1);
        let kubernetes = words.flag("-k");
        let asked = Fields::none()
            .text(1, if kubernetes { "k8s.io" } else { "system" })
            .text(2, words.0.first().copied().unwrap_or_default())
            .number(3, kubernetes.into())
            .number(4, follow.into())
            .number(5, tail);
        self.print_data("/machine.MachineService/Logs", asked, screen)
            .await
    }

    async fn dmesg(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let asked = Fields::none()
            .number(1, words.flag("-f").into())
            .number(2, words.flag("--tail").into());
        self.print_data("/machine.MachineService/Dmesg", asked, screen)
            .await
    }

    /// Prints a stream of `common.Data` as text.
    pub(super) async fn print_data(
        &self,
        method: &'static str,
        asked: Fields,
        screen: &mut Screen,
    ) -> Step {
        let mut parts = self.session.stream(method, asked).await?;
        while let Some(part) = parts.next().await? {
            screen.text(&part.text_of(2))?;
        }
        Ok(())
    }

    async fn events(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let asked = Fields::none()
            .number(1, words.number("--tail").unwrap_or_default())
            .text(2, words.value("--since").unwrap_or_default())
            .number(3, words.number("--duration").unwrap_or_default())
            .text(4, words.value("--actor-id").unwrap_or_default());
        let mut events = self
            .session
            .stream("/machine.MachineService/Events", asked)
            .await?;
        let mut is_first = true;
        while let Some(event) = events.next().await? {
            if std::mem::take(&mut is_first) {
                continue;
            }
            let data = event.message_of(2).unwrap_or_default();
            let url = data.text_of(1);
            let Some(name) = wait::known_event(&url) else {
                continue;
            };
            let payload = data.message_of(2).unwrap_or_default();
            if name == "MachineStatusEvent" {
                needed(payload.message_of(2), "status")?;
            }
            let (id, actor) = (event.text_of(3), event.text_of(4));
            let said = wait::describe(name, &payload, false);
            screen.line(&format!("{id} {actor:?} {name} {said}"))?;
        }
        Ok(())
    }

    async fn containers(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let asked = of_containers(&mut words);
        let element = self
            .session
            .element("/machine.MachineService/Containers", asked)
            .await?;
        for container in element.messages_of(2) {
            screen.line(&format!(
                "{} {} {} {} {}",
                container.text_of(1),
                container.text_of(2),
                container.text_of(3),
                container.number_of(4),
                container.text_of(5)
            ))?;
        }
        Ok(())
    }

    async fn stats(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let asked = of_containers(&mut words);
        let element = self
            .session
            .element("/machine.MachineService/Stats", asked)
            .await?;
        for stat in element.messages_of(2) {
            screen.line(&format!(
                "{} {} {} {}",
                stat.text_of(1),
                stat.text_of(2),
                stat.number_of(4),
                stat.number_of(5)
            ))?;
        }
        Ok(())
    }

    async fn processes(&self, screen: &mut Screen) -> Step {
        let element = self
            .session
            .element("/machine.MachineService/Processes", Fields::none())
            .await?;
        for process in element.messages_of(2) {
            screen.line(&format!(
                "{} {} {} {} {} {}",
                process.number_of(1),
                process.text_of(3),
                process.number_of(4),
                process.number_of(7),
                process.text_of(8),
                process.text_of(9)
            ))?;
        }
        Ok(())
    }

    async fn memory(&self, screen: &mut Screen) -> Step {
        let element = self
            .session
            .element("/machine.MachineService/Memory", Fields::none())
            .await?;
        let info = needed(element.message_of(2), "meminfo")?;
        screen.line(&format!(
            "total {} free {} available {}",
            info.number_of(1),
            info.number_of(2),
            info.number_of(3)
        ))
    }

    async fn mounts(&self, screen: &mut Screen) -> Step {
        let element = self
            .session
            .element("/machine.MachineService/Mounts", Fields::none())
            .await?;
        for mount in element.messages_of(2) {
            // Mounts without a size are not shown.
            if mount.number_of(2) == 0 {
                continue;
            }
            screen.line(&format!(
                "{} {} {} {}",
                mount.text_of(1),
                mount.number_of(2),
                mount.number_of(3),
                mount.text_of(4)
            ))?;
        }
        Ok(())
    }

    async fn netstat(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let programs = words.flag("-p");
        let all = words.flag("-a");
        let listening = words.flag("-l");
        let kubernetes = words.flag("-k");
        let protocols: Vec<u32> = [("-t", [1, 2]), ("-u", [3, 4]), ("-w", [7, 8])]
            .into_iter()
            .filter_map(|(flag, fields)| words.flag(flag).then_some(fields))
            .flatten()
            .collect();
        let protocols = match (protocols.is_empty(), words.flag("-4")) {
            (false, _) => protocols,
            (true, true) => vec![1, 3],
            (true, false) => vec![1, 2, 3, 4],
        };
        let protocols = protocols
            .into_iter()
            .fold(Fields::none(), |fields, field| fields.number(field, 1));
        if kubernetes {
            let containers = Fields::none().text(1, "k8s.io").number(2, 1);
            self.session
                .element("/machine.MachineService/Containers", containers)
                .await?;
        }
        let filter = match (all, listening) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        let asked = Fields::none()
            .number(1, filter)
            .message(2, &Fields::none().number(1, programs.into()))
            .message(3, &protocols)
            .message(4, &Fields::none().number(1, 1).number(3, kubernetes.into()));
        let element = self
            .session
            .element("/machine.MachineService/Netstat", asked)
            .await?;
        for socket in element.messages_of(2) {
            let process = socket.message_of(17);
            let process = match programs {
                true => needed(process, "process")?,
                false => process.unwrap_or_default(),
            };
            screen.line(&format!(
                "{} {}:{} {}:{} {} {}/{}",
                socket.text_of(1),
                socket.text_of(2),
                socket.number_of(3),
                socket.text_of(4),
                socket.number_of(5),
                socket.number_of(6),
                process.number_of(1),
                process.text_of(2)
            ))?;
        }
        Ok(())
    }

    async fn time(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let element = match words.value("--check") {
            None => {
                self.session
                    .element("/time.TimeService/Time", Fields::none())
                    .await?
            }
            Some(server) => {
                let asked = Fields::none().text(1, server);
                self.session
                    .element("/time.TimeService/TimeCheck", asked)
                    .await?
            }
        };
        let [local, remote] = [3, 4].map(|field| element.message_of(field));
        let (Some(local), Some(remote)) = (local, remote) else {
            return Err(Stop::Failed("a time is missing".to_owned()));
        };
        screen.line(&format!(
            "{} {} {}",
            element.text_of(2),
            local.number_of(1),
            remote.number_of(1)
        ))
    }

    async fn cgroups(&self, screen: &mut Screen) -> Step {
        self.session
            .element("/machine.MachineService/Processes", Fields::none())
            .await?;
        for root in ["/sys/dev/block", "/sys/fs/cgroup"] {
            for name in self.copied_names(root).await? {
                screen.line(&format!("{root} {name}"))?;
            }
        }
        let containers = Fields::none().text(1, "k8s.io").number(2, 1);
        self.session
            .element("/machine.MachineService/Containers", containers)
            .await?;
        Ok(())
    }

    async fn meta(&self, words: Words<'_>, screen: &mut Screen) -> Step {
        if self.session.is_insecure() && self.session.release == Release::V1_14 {
            return Err(Stop::Failed("unknown flag: --insecure".to_owned()));
        }
        let verb = words.0.first().copied().unwrap_or_default();
        let key = words.0.get(1).and_then(|key| {
            let hexadecimal = key.strip_prefix("0x");
            hexadecimal.map_or_else(|| key.parse().ok(), |it| i64::from_str_radix(it, 16).ok())
        });
        let asked = Fields::none().number(1, key.unwrap_or_default());
        let method = match verb {
            "write" => "/machine.MachineService/MetaWrite",
            _ => "/machine.MachineService/MetaDelete",
        };
        let asked = match verb {
            "write" => asked.text(2, words.0.get(2).copied().unwrap_or_default()),
            _ => asked,
        };
        self.session.element(method, asked).await?;
        screen.line(verb)
    }

    async fn wipe(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let zeroes = words.value("--method") == Some("ZEROES");
        let drops = words.flag("--drop-partition");
        let device = words.0.last().copied().unwrap_or_default();
        let device = Fields::none()
            .text(1, device)
            .number(2, zeroes.into())
            .number(4, drops.into());
        let asked = Fields::none().message(1, &device);
        self.session
            .element("/storage.StorageService/BlockDeviceWipe", asked)
            .await?;
        screen.line("wiped")
    }

    async fn health(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let seconds = words.number("--wait-timeout").unwrap_or(1200);
        // The newer release reads the config before it checks the health.
        if self.session.release == Release::V1_14 {
            self.machine_config().await?;
        }
        let asked = Fields::none()
            .message(1, &Fields::none().number(1, seconds))
            .message(2, &Fields::none());
        let mut said = self
            .session
            .stream("/cluster.ClusterService/HealthCheck", asked)
            .await?;
        while let Some(said) = said.next().await? {
            screen.complain(&said.text_of(2));
        }
        Ok(())
    }

    async fn pcap(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let seconds = words.number("--duration").unwrap_or(1);
        let asked = Fields::none().text(1, words.value("-i").unwrap_or_default());
        let seconds = u64::try_from(seconds).unwrap_or_default();
        let deadline = Duration::from_secs(seconds);
        let mut bytes = Vec::new();
        let captured = tokio::time::timeout(deadline, async {
            let mut parts = self
                .session
                .stream("/machine.MachineService/PacketCapture", asked)
                .await?;
            while let Some(part) = parts.next().await? {
                bytes.extend(part.bytes_of(2));
            }
            Ok::<(), tonic::Status>(())
        });
        if let Ok(ended) = captured.await {
            ended?;
        }
        // A pcap file begins with its magic number (pcap-savefile(5)).
        match bytes.first_chunk() {
            Some([0xd4, 0xc3, 0xb2, 0xa1] | [0xa1, 0xb2, 0xc3, 0xd4]) => {
                screen.line(&format!("{} bytes", bytes.len()))
            }
            other => Err(Stop::Failed(format!("no pcap file: {other:02x?}"))),
        }
    }

    pub(super) async fn kubeconfig(&self) -> Step {
        let method = "/machine.MachineService/Kubeconfig";
        let packed = self.session.bytes(method, Fields::none()).await?;
        match packed.is_empty() {
            true => Err(Stop::Failed("error initializing gzip".to_owned())),
            false => Ok(()),
        }
    }

    async fn bootstrap(&self, mut words: Words<'_>) -> Step {
        let unchecked = words.flag("--recover-skip-hash-check");
        let mut asked = Fields::none().number(2, unchecked.into());
        if let Some(file) = words.value("--recover-from") {
            let unread = |error: std::io::Error| Stop::Failed(error.to_string());
            let bytes = std::fs::read(file).map_err(unread)?;
            let method = "/machine.MachineService/EtcdRecover";
            self.session.send(method, &bytes).await?;
            asked = asked.number(1, 1);
        }
        let method = "/machine.MachineService/Bootstrap";
        let begun = self.session.element_within(RECOVERY, method, asked);
        begun.await?;
        Ok(())
    }

    async fn etcd(&self, words: Words<'_>) -> Step {
        match words.0.first().copied().unwrap_or_default() {
            "members" => {
                let asked = Fields::none().number(1, 1);
                self.session
                    .element("/machine.MachineService/EtcdMemberList", asked)
                    .await?;
                Ok(())
            }
            "status" => self.plain("/machine.MachineService/EtcdStatus").await,
            "snapshot" => {
                let method = "/machine.MachineService/EtcdSnapshot";
                self.session.bytes(method, Fields::none()).await?;
                Ok(())
            }
            _ => self.plain("/machine.MachineService/EtcdAlarmList").await,
        }
    }

    async fn new_config(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let seconds = words.number("--crt-ttl").unwrap_or(3600);
        let asked = Fields::none()
            .text(1, words.value("--roles").unwrap_or("os:admin"))
            .message(2, &Fields::none().number(1, seconds));
        let element = self
            .session
            .element("/machine.MachineService/GenerateClientConfiguration", asked)
            .await?;
        screen.text(&element.text_of(5))
    }

    async fn inspect(&self, screen: &mut Screen) -> Step {
        let method = "/inspect.InspectService/ControllerRuntimeDependencies";
        let element = self.session.element(method, Fields::none()).await?;
        screen.line(&format!("{} edges", element.messages_of(2).len()))
    }

    async fn restart(&self, mut words: Words<'_>) -> Step {
        let kubernetes = words.flag("-k");
        let asked = Fields::none()
            .text(1, if kubernetes { "k8s.io" } else { "system" })
            .text(2, words.0.first().copied().unwrap_or_default())
            .number(3, kubernetes.into());
        self.session
            .element("/machine.MachineService/Restart", asked)
            .await?;
        Ok(())
    }

    async fn disk_free(&self, screen: &mut Screen) -> Step {
        let mounts = self
            .list_resources("runtime", "MountStatuses.block.talos.dev")
            .await?;
        for mount in mounts {
            let target = mount.spec["target"].as_str().unwrap_or_default().to_owned();
            let asked = Fields::none().text(1, &target);
            let statistics = self
                .session
                .call("/machine.StorageService/Statfs", asked)
                .await?;
            screen.line(&format!(
                "{target} {} {} {}",
                statistics.number_of(1),
                statistics.number_of(2),
                statistics.number_of(3)
            ))?;
        }
        Ok(())
    }

    /// Without a flag against it the command is a dry run.
    async fn rotate_ca(&self, screen: &mut Screen) -> Step {
        let unnamed = Self {
            session: match self.session.release {
                Release::V1_13 => self.session.naming_nobody(),
                Release::V1_14 => self.session.clone(),
            },
            ..*self
        };
        let members = unnamed
            .list_resources("cluster", "Members.cluster.talos.dev")
            .await?;
        let mut control_planes = members
            .iter()
            .filter(|member| member.spec["machineType"] == "controlplane");
        let first = needed(control_planes.next(), "a control plane")?;
        let authority = self.current_authority().await?;
        screen.line(&format!(
            "would rotate {} bytes on {}, of {} members",
            authority.len(),
            first.id,
            members.len()
        ))
    }
}
