//! The cluster of a machine: its node there, and the pool that updates it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use serde_json::json;

use super::machine::Machine;
use super::settings::Settings;
use super::trouble::Trouble;
use super::wanted::Wanted;
use crate::api::{MACHINE, Pool};
use crate::failure::code;
use crate::way;

/// Timeout of one answer of the cluster's API server.
const ANSWER: Duration = Duration::from_secs(5);
/// The label by which a pool selects one node. Kubelet sets it on every node.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The cluster of a machine.
pub(super) struct Workload {
    client: Client,
    cluster: String,
    node: String,
    /// The name of the pool: one for each machine, however often it is asked for.
    pool: String,
    /// The machine's name, for people who look at the pool.
    machine: String,
}

impl Workload {
    /// Finds the way there: the kubeconfig that every cluster of Cluster API has in its Secret CLUSTER-kubeconfig.
    pub(super) async fn connect(management: &Client, machine: &Machine) -> Result<Self, Trouble> {
        let cluster = format!("cluster {}/{}", machine.namespace, machine.cluster);
        let name = format!("{}-kubeconfig", machine.cluster);
        let secrets: Api<Secret> = Api::namespaced(management.clone(), &machine.namespace);
        let doing = format!("Secret {}/{name} cannot be read", machine.namespace);
        let secret = secrets.get(&name).await.map_err(Trouble::of(doing))?;
        let value = secret.data.unwrap_or_default().remove("value");
        let text = value.and_then(|value| String::from_utf8(value.0).ok());
        let missing = || Trouble::Lasting(format!("{cluster}: Secret {name} has no kubeconfig"));
        let client = way::client_of(&text.ok_or_else(missing)?, ANSWER).await;
        Ok(Self {
            client: client.map_err(|error| Trouble::Lasting(format!("{cluster}: {error}")))?,
            cluster,
            node: machine.node.clone(),
            pool: format!("machine-{}", machine.uid),
            machine: format!("{}.{}", machine.namespace, machine.name),
        })
    }

    fn pools(&self) -> Api<Pool> {
        Api::all(self.client.clone())
    }

    /// The trouble of a call about the pool, as in "be read".
    fn pool_cannot(&self, what: &str) -> impl FnOnce(kube::Error) -> Trouble + use<> {
        let (cluster, pool) = (&self.cluster, &self.pool);
        Trouble::of(format!("{cluster}: pool {pool} cannot {what}"))
    }

    /// The pool, if there is one.
    pub(super) async fn pool(&self) -> Result<Option<Pool>, Trouble> {
        let got = self.pools().get_opt(&self.pool).await;
        got.map_err(self.pool_cannot("be read"))
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// The machine's node.
    pub(super) async fn node(&self) -> Result<Node, Trouble> {
        let doing = format!("{}: node {} cannot be read", self.cluster, self.node);
        self.nodes()
            .get(&self.node)
            .await
            .map_err(Trouble::of(doing))
    }

    /// Makes the pool of the node.
    pub(super) async fn make_pool(
        &self,
        node: Node,
        settings: &Settings,
        wanted: &Wanted,
    ) -> Result<(), Trouble> {
        let hostname = node.metadata.labels.unwrap_or_default().remove(HOSTNAME);
        let none = || Trouble::Lasting(format!("node {} has no label {HOSTNAME}", self.node));
        let hostname = hostname.ok_or_else(none)?;
        self.check_that_it_is_alone(&hostname).await?;
        let labels = [(HOSTNAME.to_owned(), hostname)].into();
        let mut pool = Pool::new(&self.pool, wanted.pool(settings, labels));
        pool.metadata = ObjectMeta {
            name: Some(self.pool.clone()),
            annotations: Some([(MACHINE.to_owned(), self.machine.clone())].into()),
            // With the machine its node is deleted, and then nothing is left of the pool either.
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.node.clone(),
                uid: node.metadata.uid.unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        };
        match self.pools().create(&PostParams::default(), &pool).await {
            Ok(made) => self.check_that_it_says_all(&made, wanted),
            Err(error) if code(&error) == Some(404) => Err(Trouble::Lasting(format!(
                "{} has no pools: install instar-operator there",
                self.cluster
            ))),
            Err(error) => Err(self.pool_cannot("be made")(error)),
        }
    }

    /// An API server drops fields that it does not know without a word.
    fn check_that_it_says_all(&self, pool: &Pool, wanted: &Wanted) -> Result<(), Trouble> {
        match wanted.is_of(&pool.spec) {
            true => Ok(()),
            false => Err(Trouble::Lasting(format!(
                "{}: pools have no field configPatches: apply the definitions of a newer instar-operator there",
                self.cluster
            ))),
        }
    }

    /// A pool over two nodes would update both.
    async fn check_that_it_is_alone(&self, hostname: &str) -> Result<(), Trouble> {
        let alike = ListParams::default().labels(&format!("{HOSTNAME}={hostname}"));
        let doing = format!("{}: nodes cannot be listed", self.cluster);
        let found = self
            .nodes()
            .list_metadata(&alike)
            .await
            .map_err(Trouble::of(doing))?;
        match found.items.len() {
            1 => Ok(()),
            several => Err(Trouble::Lasting(format!(
                "{}: {several} nodes have the label {HOSTNAME}={hostname}",
                self.cluster
            ))),
        }
    }

    /// Has the pool name what is wanted now.
    pub(super) async fn change_pool(&self, wanted: &Wanted) -> Result<(), Trouble> {
        let Wanted {
            image,
            config_patches,
            ..
        } = wanted;
        let spec = json!({"image": image, "configPatches": config_patches});
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = self
            .pools()
            .patch(&self.pool, &PatchParams::default(), &patch)
            .await;
        let changed = patched.map_err(self.pool_cannot("be changed"))?;
        self.check_that_it_says_all(&changed, wanted)
    }

    /// Deletes the pool.
    pub(super) async fn delete_pool(&self) -> Result<(), Trouble> {
        match self
            .pools()
            .delete(&self.pool, &DeleteParams::default())
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(404) => Ok(()),
            Err(error) => Err(self.pool_cannot("be deleted")(error)),
        }
    }
}
