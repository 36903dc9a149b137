//! A change of one node's config, by a node in this process.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};

use instar_api::cosi::resource as cosi;
use instar_api::cosi::resource::state_server::{State, StateServer};
use instar_api::definitions::config::MachineConfigSpec;
use instar_api::machine as wire;
use instar_api::machine::machine_service_server::{MachineService, MachineServiceServer};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::BoxStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::*;

const BEFORE: &str = "version: v1alpha1 # ours\nmachine: {type: worker}\n";
const PATCH: &str = "machine: {sysctls: {a: \"1\"}}";

/// The configs of a node, and the configs that came, each as its mode; a dry run has a `?`.
struct Machine {
    in_force: String,
    kept: String,
    came: Vec<String>,
    /// A config that a person gives to the node as soon as one of this mode has come, or as way is made.
    edited: Option<(Mode, String)>,
    /// Whether it carries out a part of a config that it tries, and fails.
    does_a_part: bool,
}

impl Machine {
    fn edit_after(&mut self, mode: Mode) {
        if let Some((_, edited)) = self.edited.take_if(|(after, _)| *after == mode) {
            (self.in_force, self.kept) = (edited.clone(), edited);
        }
    }
}

#[derive(Clone)]
struct Api(Arc<Mutex<Machine>>);

#[tonic::async_trait]
impl MachineService for Api {
    async fn version(&self, _: Request<()>) -> Result<Response<wire::VersionResponse>, Status> {
        let messages = vec![wire::Version::default()];
        Ok(Response::new(wire::VersionResponse { messages }))
    }

    async fn apply_configuration(
        &self,
        request: Request<ApplyConfigurationRequest>,
    ) -> Result<Response<wire::ApplyConfigurationResponse>, Status> {
        let request = request.into_inner();
        let (mode, data) = (request.mode(), String::from_utf8(request.data).unwrap());
        let mut machine = self.0.lock().unwrap();
        let sign = if request.dry_run { "?" } else { "" };
        machine.came.push(format!("{}{sign}", mode.as_str_name()));
        if !request.dry_run {
            machine.in_force = data.clone();
            if mode != Mode::Try {
                machine.kept = data;
            }
            machine.edit_after(mode);
            if mode == Mode::Try && machine.does_a_part {
                return Err(Status::internal("not all of it was done"));
            }
        }
        let messages = vec![ApplyConfiguration {
            mode: Mode::NoReboot.into(),
            ..ApplyConfiguration::default()
        }];
        Ok(Response::new(wire::ApplyConfigurationResponse { messages }))
    }
}

fn absent<T>() -> Result<T, Status> {
    Err(Status::unimplemented("not in the script"))
}

#[tonic::async_trait]
impl State for Api {
    async fn get(
        &self,
        request: Request<cosi::GetRequest>,
    ) -> Result<Response<cosi::GetResponse>, Status> {
        let machine = self.0.lock().unwrap();
        let text = match request.get_ref().id.as_str() {
            CONFIG_IN_FORCE => &machine.in_force,
            _ => &machine.kept,
        };
        let spec = MachineConfigSpec {
            yaml_marshalled: text.clone().into_bytes(),
        };
        let spec = cosi::Spec {
            proto_spec: spec.encode_to_vec(),
            ..cosi::Spec::default()
        };
        let resource = cosi::Resource {
            spec: Some(spec),
            ..cosi::Resource::default()
        };
        Ok(Response::new(cosi::GetResponse {
            resource: Some(resource),
        }))
    }

    async fn list(
        &self,
        _: Request<cosi::ListRequest>,
    ) -> Result<Response<BoxStream<cosi::ListResponse>>, Status> {
        absent()
    }

    async fn create(
        &self,
        _: Request<cosi::WriteRequest>,
    ) -> Result<Response<cosi::WriteResponse>, Status> {
        absent()
    }

    async fn update(
        &self,
        _: Request<cosi::WriteRequest>,
    ) -> Result<Response<cosi::WriteResponse>, Status> {
        absent()
    }

    async fn destroy(
        &self,
        _: Request<cosi::WriteRequest>,
    ) -> Result<Response<cosi::WriteResponse>, Status> {
        absent()
    }

    async fn watch(
        &self,
        _: Request<cosi::WatchRequest>,
    ) -> Result<Response<BoxStream<cosi::WatchResponse>>, Status> {
        absent()
    }
}

/// The node's configs that are kept.
#[derive(Default)]
struct Known(RefCell<Option<NodeConfigs>>);

impl NodeConfigStore for &Known {
    async fn known(&self, _: &MachineName) -> Result<Option<NodeConfigs>, Failure> {
        Ok(self.0.borrow().clone())
    }

    async fn keep(&self, _: &MachineName, configs: &NodeConfigs) -> Result<(), Failure> {
        *self.0.borrow_mut() = Some(configs.clone());
        Ok(())
    }
}

/// The surroundings of the node.
struct Site {
    node: Node,
    /// Why no way can be made.
    blocked: Option<&'static str>,
    /// Whether another program has taken over.
    is_overtaken: bool,
    unwell: Option<&'static str>,
    hears: Hears,
    /// The looks for a mark so far.
    looks: Cell<u32>,
    machine: Arc<Mutex<Machine>>,
}

/// The state of the node as others see it.
#[derive(Clone, Copy)]
enum Hears {
    /// Nobody is asked.
    Unasked,
    /// Something new at each look.
    Always,
    /// Nothing since before.
    Never,
}

impl ConfigSite for Site {
    async fn connect(&self) -> Result<Node, Failure> {
        Ok(self.node.clone())
    }

    async fn make_way(&mut self, _: &ApplyConfiguration) -> Result<(), Failure> {
        match self.blocked {
            Some(why) => Err(Failure::new(FailureKind::Refused, why)),
            None => {
                self.machine.lock().unwrap().edit_after(Mode::Auto);
                Ok(())
            }
        }
    }

    fn may_ask(&self) -> Result<(), Failure> {
        match self.is_overtaken {
            true => Err(Failure::new(FailureKind::Unreachable, "overtaken")),
            false => Ok(()),
        }
    }

    async fn heard(&self) -> Result<Option<String>, String> {
        self.looks.set(self.looks.get() + 1);
        if let Some(why) = self.unwell {
            return Err(why.to_owned());
        }
        Ok(match self.hears {
            Hears::Unasked => None,
            Hears::Always => Some(self.looks.get().to_string()),
            Hears::Never => Some("before".to_owned()),
        })
    }

    fn note(&mut self, _: &str) {}
}

struct World {
    machine: Arc<Mutex<Machine>>,
    node: Node,
    known: Known,
}

impl World {
    async fn begin() -> Self {
        let machine = Arc::new(Mutex::new(Machine {
            in_force: BEFORE.to_owned(),
            kept: BEFORE.to_owned(),
            came: Vec::new(),
            edited: None,
            does_a_part: false,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let api = Api(machine.clone());
        let server = Server::builder()
            .add_service(MachineServiceServer::new(api.clone()))
            .add_service(StateServer::new(api));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(address).unwrap().connect_lazy();
        Self {
            machine,
            node: Node::connected(channel, "lamp-1"),
            known: Known::default(),
        }
    }

    fn order(&self, action: fn(MachineName) -> Action, patch: &str) -> ConfigOrder<&Known, Site> {
        ConfigOrder {
            action: action(MachineName::from("lamp-1")),
            node: self.node.clone(),
            change: ConfigChange::of_patches(vec![patch.to_owned()]).unwrap(),
            // One look decides.
            trial: Trial {
                limit: Seconds(RESERVE.as_secs()),
                steady: Seconds(0),
                may_reboot: true,
            },
            limit: Duration::ZERO,
            configs: &self.known,
            site: Site {
                node: self.node.clone(),
                blocked: None,
                is_overtaken: false,
                unwell: None,
                hears: Hears::Unasked,
                looks: Cell::default(),
                machine: self.machine.clone(),
            },
        }
    }

    /// The modes of the configs that came since the last time.
    fn came(&self) -> Vec<String> {
        std::mem::take(&mut self.machine.lock().unwrap().came)
    }

    /// The config in force, and the one that is kept, if they are the same.
    fn config(&self) -> String {
        let machine = self.machine.lock().unwrap();
        assert_eq!(machine.in_force, machine.kept);
        machine.kept.clone()
    }
}

#[tokio::test]
async fn a_node_tries_a_config_keeps_it_and_goes_back() {
    let world = World::begin().await;
    world
        .order(Action::Switch, PATCH)
        .carry_out()
        .await
        .unwrap();
    assert_eq!(world.came(), ["AUTO?", "TRY", "NO_REBOOT"]);
    assert!(world.config().contains("sysctls"), "{}", world.config());
    let known = world.known.0.borrow().clone().unwrap();
    assert_eq!(
        (known.before.as_str(), known.after),
        (BEFORE, world.config())
    );
    // Again, as a driver that took over meanwhile asks: it has it.
    world
        .order(Action::Switch, PATCH)
        .carry_out()
        .await
        .unwrap();
    assert_eq!(world.came(), Vec::<String>::new());
    world
        .order(Action::Return, PATCH)
        .carry_out()
        .await
        .unwrap();
    assert_eq!(world.came(), ["AUTO?", "TRY", "NO_REBOOT"]);
    assert_eq!(world.config(), BEFORE);
}

#[tokio::test]
async fn a_check_changes_nothing() {
    let world = World::begin().await;
    world
        .order(Action::Prepare, PATCH)
        .carry_out()
        .await
        .unwrap();
    assert_eq!(world.came(), ["AUTO?"]);
    assert_eq!(world.config(), BEFORE);
}

#[tokio::test]
async fn nothing_is_sent_where_no_way_can_be_made() {
    let world = World::begin().await;
    let mut order = world.order(Action::Switch, PATCH);
    order.site.blocked = Some("pods do not leave");
    let failure = order.carry_out().await.unwrap_err();
    assert_eq!(failure.chain(), "pods do not leave");
    assert_eq!(world.came(), ["AUTO?"]);
    assert_eq!(world.config(), BEFORE);
}

#[tokio::test]
async fn nothing_is_sent_by_a_program_that_was_overtaken() {
    let world = World::begin().await;
    let mut order = world.order(Action::Switch, PATCH);
    order.site.is_overtaken = true;
    let failure = order.carry_out().await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unreachable);
    assert_eq!(world.came(), ["AUTO?"]);
    assert_eq!(world.config(), BEFORE);
}

#[tokio::test]
async fn a_node_that_others_call_unwell_has_its_config_of_before_again() {
    let world = World::begin().await;
    let mut order = world.order(Action::Switch, PATCH);
    order.site.unwell = Some("kubelet sleeps");
    let why = order.carry_out().await.unwrap_err().chain();
    assert!(why.contains("kubelet sleeps"), "{why}");
    assert!(why.contains("it has its previous config again"), "{why}");
    assert_eq!(world.came(), ["AUTO?", "TRY", "NO_REBOOT"]);
    assert_eq!(world.config(), BEFORE);
}

#[tokio::test]
async fn a_node_that_did_a_part_of_its_config_has_the_one_of_before_again() {
    let world = World::begin().await;
    world.machine.lock().unwrap().does_a_part = true;
    let failure = world.order(Action::Switch, PATCH).carry_out().await;
    let failure = failure.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Failed);
    let why = failure.chain();
    for words in [
        "did not carry out the machine config",
        "not all of it was done; it has its previous config again",
    ] {
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(world.came(), ["AUTO?", "TRY", "NO_REBOOT"]);
    assert_eq!(world.config(), BEFORE);
}

#[tokio::test]
async fn what_is_known_of_another_change_is_neither_a_proof_nor_a_way_back() {
    let world = World::begin().await;
    let other = ConfigChange::of_patches(vec!["machine: {env: {A: b}}".to_owned()]);
    *world.known.0.borrow_mut() = Some(NodeConfigs {
        change: other.unwrap().release(),
        before: "version: v1alpha1\n".to_owned(),
        after: BEFORE.to_owned(),
    });
    let back = world.order(Action::Return, PATCH).carry_out().await;
    let why = back.unwrap_err().chain();
    assert!(why.contains("its previous config is not known"), "{why}");
    world
        .order(Action::Switch, PATCH)
        .carry_out()
        .await
        .unwrap();
    assert!(world.config().contains("sysctls"));
}

#[tokio::test]
async fn a_config_that_was_changed_meanwhile_is_left_as_it_is() {
    let world = World::begin().await;
    world
        .order(Action::Switch, PATCH)
        .carry_out()
        .await
        .unwrap();
    let edited = format!("{}---\nkind: HostnameConfig\n", world.config());
    {
        let mut machine = world.machine.lock().unwrap();
        (machine.in_force, machine.kept) = (edited.clone(), edited.clone());
    }
    let back = world.order(Action::Return, PATCH).carry_out().await;
    let why = back.unwrap_err().chain();
    assert!(why.contains("changed meanwhile"), "{why}");
    assert_eq!(world.config(), edited);
}

/// Others call a node ready for a time after its last word, whatever became of it.
#[tokio::test]
async fn a_node_that_others_do_not_hear_any_more_has_its_config_of_before_again() {
    let world = World::begin().await;
    let mut order = world.order(Action::Switch, PATCH);
    order.site.hears = Hears::Never;
    order.trial.limit = Seconds(RESERVE.as_secs() + 1);
    let why = order.carry_out().await.unwrap_err().chain();
    assert!(why.contains("has not heard from it since"), "{why}");
    assert!(why.contains("it has its previous config again"), "{why}");
    assert_eq!(world.config(), BEFORE);

    let mut order = world.order(Action::Switch, PATCH);
    order.site.hears = Hears::Always;
    order.trial.limit = Seconds(RESERVE.as_secs() + 5);
    order.carry_out().await.unwrap();
    // The first look is what it is compared with.
    assert_eq!(order.site.looks.get(), 2);
    assert!(world.config().contains("sysctls"), "{}", world.config());
}

#[tokio::test]
async fn what_a_person_changes_while_way_is_made_stays() {
    let world = World::begin().await;
    let edited = format!("{BEFORE}---\nkind: HostnameConfig\n");
    world.machine.lock().unwrap().edited = Some((Mode::Auto, edited.clone()));
    let mut order = world.order(Action::Switch, PATCH);
    let failure = order.carry_out().await.unwrap_err();
    // The driver asks anew.
    assert_eq!(failure.kind(), FailureKind::Unreachable);
    assert_eq!(world.came(), ["AUTO?"]);
    assert_eq!(world.config(), edited);
    order.carry_out().await.unwrap();
    let config = world.config();
    let has_both = config.contains("HostnameConfig") && config.contains("sysctls");
    assert!(has_both, "{config}");
    let known = world.known.0.borrow().clone().unwrap();
    assert_eq!((known.before, known.after), (edited, config));
}

#[tokio::test]
async fn what_a_person_changes_during_a_trial_stays() {
    let world = World::begin().await;
    let edited = format!("{BEFORE}---\nkind: HostnameConfig\n");
    world.machine.lock().unwrap().edited = Some((Mode::Try, edited.clone()));
    let failed = world.order(Action::Switch, PATCH).carry_out().await;
    let why = failed.unwrap_err().chain();
    assert!(why.contains("another config is in force"), "{why}");
    assert!(why.contains("left as it is"), "{why}");
    assert_eq!(world.came(), ["AUTO?", "TRY"]);
    assert_eq!(world.config(), edited);
}
