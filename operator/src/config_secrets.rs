//! The configs of nodes before a change and after it, each node's in a Secret of the operator's namespace: the way back, and the proof that a node
//! has the change.
//!
//! The decision: Secrets, and not the record. A config of a control plane holds the cluster's keys, and everybody who may look at pools reads the
//! record. The Secrets belong to their pool, and go with it.

use instar_client::{Failure, FailureKind};
use instar_rollout::MachineName;
use instar_rollout_driver::{NodeConfigStore, NodeConfigs};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::api::POOL_LABEL;
use crate::cluster::ASK;
use crate::failure::{Error, code};

/// The key of a Secret under which the configs are.
const CONFIGS: &str = "configs.json";

/// The configs of one pool's nodes.
#[derive(Clone)]
pub(crate) struct ConfigSecrets {
    secrets: Api<Secret>,
    pool: String,
    owner: Option<OwnerReference>,
}

impl ConfigSecrets {
    /// Those of a pool, in this namespace. `owner`: the pool, as the owner of all of them.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        pool: &str,
        owner: Option<OwnerReference>,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
            pool: pool.to_owned(),
            owner,
        }
    }

    /// Forgets those of the change before.
    ///
    /// # Errors
    /// They cannot be deleted.
    pub(crate) async fn forget(&self) -> Result<(), Error> {
        let own = ListParams::default().labels(&format!("{POOL_LABEL}={}", self.pool));
        let doing = format!("pool {}: previous configs cannot be deleted", self.pool);
        let parameters = DeleteParams::default();
        let deleted = self.secrets.delete_collection(&parameters, &own);
        match timeout(ASK, deleted).await {
            Ok(deleted) => deleted.map(drop).map_err(Error::calling(doing)),
            Err(_) => Err(Error::Other(format!("{doing}: no answer"))),
        }
    }

    async fn read(&self, node: &MachineName) -> Result<Option<Secret>, Failure> {
        let doing = format!("the config of {node} before the change cannot be read");
        let read = timeout(ASK, self.secrets.get(&name_of(node))).await;
        match read.map_err(|_| unanswered(&doing))? {
            Ok(secret) => Ok(Some(secret)),
            Err(error) if code(&error) == Some(404) => Ok(None),
            Err(error) => Err(Error::calling(doing)(error).into()),
        }
    }

    fn secret(&self, node: &MachineName, configs: &NodeConfigs) -> Result<Secret, Failure> {
        let text = serde_json::to_vec(configs).map_err(|error| {
            let why = format!("the config of {node} before the change cannot be written");
            Failure::new(FailureKind::Failed, why).because(error)
        })?;
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(name_of(node)),
                labels: Some([(POOL_LABEL.to_owned(), self.pool.clone())].into()),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some([(CONFIGS.to_owned(), ByteString(text))].into()),
            ..Secret::default()
        })
    }
}

/// A node belongs to one pool at most, so its name is enough.
fn name_of(node: &MachineName) -> String {
    format!("instar-config.{node}")
}

fn unanswered(doing: &str) -> Failure {
    let why = format!("{doing}: no answer within {} s", ASK.as_secs());
    Failure::new(FailureKind::Unreachable, why)
}

fn content(node: &MachineName, secret: &Secret) -> Result<NodeConfigs, Failure> {
    let text = secret.data.as_ref().and_then(|data| data.get(CONFIGS));
    let text = text.map_or(&[][..], |text| &text.0);
    serde_json::from_slice(text).map_err(|error| {
        let why = format!(
            "the Secret {} has no configs under {CONFIGS}: delete it",
            name_of(node)
        );
        Failure::new(FailureKind::Failed, why).because(error)
    })
}

impl NodeConfigStore for ConfigSecrets {
    async fn known(&self, node: &MachineName) -> Result<Option<NodeConfigs>, Failure> {
        let secret = self.read(node).await?;
        secret.map(|secret| content(node, &secret)).transpose()
    }

    async fn keep(&self, node: &MachineName, configs: &NodeConfigs) -> Result<(), Failure> {
        let mut secret = self.secret(node, configs)?;
        let parameters = PostParams::default();
        let doing = format!("the config of {node} before the change cannot be kept");
        let written = async {
            match self.read(node).await? {
                // Over the version that was read: another process would be another driver.
                Some(before) => {
                    secret.metadata.resource_version = before.metadata.resource_version;
                    let name = name_of(node);
                    let replaced = self.secrets.replace(&name, &parameters, &secret);
                    Ok::<_, Failure>(replaced.await)
                }
                None => Ok(self.secrets.create(&parameters, &secret).await),
            }
        };
        let written = timeout(2 * ASK, written).await;
        match written.map_err(|_| unanswered(&doing))?? {
            Ok(_) => Ok(()),
            // What the API server will never take must not be tried for ever.
            Err(error) if matches!(code(&error), Some(400 | 413 | 422)) => Err(Failure::new(
                FailureKind::Refused,
                format!("{doing}: {error}"),
            )),
            Err(error) => Err(Error::calling(doing)(error).into()),
        }
    }
}

#[cfg(test)]
mod tests;
