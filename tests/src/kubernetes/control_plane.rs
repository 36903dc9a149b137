//! A control plane on this host: etcd, API server, controller manager and scheduler, which end with the test.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use super::audit::{self, AuditedRequest};
use super::authority::{Authority, Credentials, TokenKey};
use super::etcd::Etcd;
use super::kubectl::Kubectl;
use super::programs::{program, spawn};
use crate::HOST_FOR_GUEST;
use crate::scratch::Scratch;

/// Timeout for the API server to be ready; from an empty etcd it takes some 3 s on an idle host.
const PATIENCE: Duration = Duration::from_secs(120);
/// Timeout for an object that the controller manager makes on its own.
const PATIENCE_FOR_CONTROLLERS: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// The token by which nodes join.
const TOKEN_ID: &str = "abcdef";
const TOKEN_SECRET: &str = "0123456789abcdef";
/// The rights that kubeadm grants to the bearers of such tokens and to nodes: to ask for a certificate, and to get it without a person's approval.
const JOINING: &str = include_str!("joining.yaml");

/// A control plane, until it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    // In this order they end: nobody loses the server that it talks to.
    _scheduler: OwnedProcess,
    _controller_manager: OwnedProcess,
    apiserver: Apiserver,
    authority: Authority,
    kubectl: Kubectl,
}

/// The machines behind the nodes of a cluster, if there are any.
#[derive(Debug, Clone, Copy)]
enum Nodes {
    Machines,
    /// Nothing: there are the objects alone.
    Objects,
}

impl Nodes {
    /// The controllers that run. One of them gives up nodes whose kubelets are silent.
    fn controllers(self) -> &'static str {
        match self {
            Self::Machines => "*",
            Self::Objects => "*,-node-lifecycle-controller",
        }
    }

    fn audit_policy(self) -> &'static str {
        match self {
            Self::Machines => audit::OF_THE_OPERATOR,
            Self::Objects => audit::OF_ALL,
        }
    }
}

/// The API server on its etcd.
#[derive(Debug)]
struct Apiserver {
    process: OwnedProcess,
    /// All words of its command.
    arguments: Vec<OsString>,
    starts: u32,
    folder: Scratch,
    port: PortLease,
    etcd: Etcd,
}

impl ControlPlane {
    /// Starts a control plane from nothing, and lets nodes join by its token.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        Self::start_for(scratch, Nodes::Machines)
    }

    /// Starts one for nodes of which there are the objects alone: none is lost because no kubelet tells of it. All requests are noted.
    pub fn start_for_objects(scratch: &Scratch) -> Result<Self> {
        Self::start_for(scratch, Nodes::Objects)
    }

    fn start_for(scratch: &Scratch, nodes: Nodes) -> Result<Self> {
        let folder = scratch.below("control-plane")?;
        let authority = Authority::make(folder.below("pki")?)?;
        let tokens = authority.token_key()?;
        let apiserver = Apiserver::start(&folder, &authority, &tokens, nodes)?;
        let admin = authority.issue("admin", "admin", Some("system:masters"), &[])?;
        let kubeconfig = authority.kubeconfig("admin", &apiserver.address(), &admin)?;
        let kubectl = Kubectl::of(&kubeconfig, folder.clone())?;
        apiserver.wait_until_ready(&kubectl)?;
        let plane = Self {
            _controller_manager: controller_manager(
                &folder,
                &authority,
                &tokens,
                (&kubeconfig, nodes),
            )?,
            _scheduler: scheduler(&folder, &authority, &apiserver.address())?,
            apiserver,
            authority,
            kubectl,
        };
        plane.let_nodes_join()?;
        plane.wait_for_controllers()?;
        Ok(plane)
    }

    /// Kills the API server, starts it again on the same etcd, and waits until it is ready. Watches of its clients break.
    pub fn restart_api_server(&mut self) -> Result<()> {
        self.apiserver.restart()?;
        self.apiserver.wait_until_ready(&self.kubectl)
    }

    /// The administrator's kubectl.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The kubectl of somebody with this token.
    pub fn kubectl_by_token(&self, token: &str) -> Kubectl {
        let authority = self.authority.own().certificate;
        self.kubectl
            .by_token(&self.apiserver.address(), &authority, token)
    }

    /// A token of a service account, which is good for a day.
    pub fn token_of(&self, namespace: &str, account: &str) -> Result<String> {
        let token = [
            "create",
            "token",
            account,
            "-n",
            namespace,
            "--duration=24h",
        ];
        Ok(self.kubectl.run(&token)?.trim().to_owned())
    }

    /// Writes the kubeconfig of a service account into the folder; its token is good for a day.
    pub fn kubeconfig_of(
        &self,
        folder: &Scratch,
        namespace: &str,
        account: &str,
    ) -> Result<PathBuf> {
        let token = self.token_of(namespace, account)?;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: own\n\
             clusters:\n- name: own\n  cluster: {{server: \"{}\", certificate-authority: \"{}\"}}\n\
             users:\n- name: own\n  user: {{token: \"{}\"}}\n\
             contexts:\n- name: own\n  context: {{cluster: own, user: own}}\n",
            self.apiserver.address(),
            self.authority.own().certificate.display(),
            token,
        );
        folder.write("kubeconfig", text)
    }

    /// The administrator's kubeconfig.
    pub(super) fn admin_kubeconfig(&self) -> PathBuf {
        self.authority
            .own()
            .certificate
            .with_file_name("admin.conf")
    }

    /// The administrator's kubeconfig with all that it needs in itself, as Cluster API keeps it in a Secret.
    pub fn inline_kubeconfig(&self) -> Result<String> {
        let [certificate, key] = self.client_certificate()?.map(|text| STANDARD.encode(text));
        Ok(format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: own\n\
             clusters:\n- name: own\n  cluster: {{server: \"{}\", certificate-authority-data: {}}}\n\
             users:\n- name: own\n  user: {{client-certificate-data: {certificate}, client-key-data: {key}}}\n\
             contexts:\n- name: own\n  context: {{cluster: own, user: own}}\n",
            self.apiserver.address(),
            STANDARD.encode(self.authority.certificate()),
        ))
    }

    /// A certificate of an administrator and its key, PEM.
    pub fn client_certificate(&self) -> Result<[String; 2]> {
        let admin = self.credentials("admin-inline", Some("system:masters"))?;
        let read = |file: &Path| {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        };
        Ok([read(&admin.certificate)?, read(&admin.key)?])
    }

    /// Issues a certificate of the cluster's authority for a client.
    pub(super) fn credentials(&self, name: &str, group: Option<&str>) -> Result<Credentials> {
        self.authority.issue(name, name, group, &[])
    }

    /// Issues a certificate of the cluster's authority for a server of this host: the files `tls.crt` and `tls.key` in the folder.
    pub(super) fn serving_certificate(&self, folder: &Scratch, name: &str) -> Result<()> {
        let names = ["localhost", "127.0.0.1"];
        let own = self.authority.issue(name, name, None, &names)?;
        for (from, to) in [(own.certificate, "tls.crt"), (own.key, "tls.key")] {
            std::fs::copy(&from, folder.join(to))
                .with_context(|| format!("cannot copy {}", from.display()))?;
        }
        Ok(())
    }

    /// The file of the authority's certificate.
    pub(super) fn authority_file(&self) -> PathBuf {
        self.authority.own().certificate
    }

    /// The address of the API server for a guest.
    pub fn endpoint_for_guest(&self) -> String {
        format!("https://{HOST_FOR_GUEST}:{}", self.port())
    }

    /// The requests of a service account of the operator's namespace, as in `list pods` and `update instar.dev/pools/status`.
    pub fn audited(&self, account: &str) -> Result<BTreeSet<String>> {
        let user = format!("system:serviceaccount:instar-system:{account}");
        let requests = self.requests()?.into_iter();
        let own = requests.filter(|request| request.user == user);
        Ok(own
            .map(|request| format!("{} {}", request.verb, request.resource))
            .collect())
    }

    /// The requests that the API server has noted, in their order.
    pub fn requests(&self) -> Result<Vec<AuditedRequest>> {
        audit::read(&self.kubectl.folder().join(AUDIT_LOG))
    }

    /// The bytes that etcd has received from its clients.
    pub fn bytes_to_etcd(&self) -> Result<u64> {
        self.apiserver.etcd.received_bytes()
    }

    /// The port of the API server, also for a guest.
    pub fn port(&self) -> u16 {
        self.apiserver.port.port()
    }

    /// The certificate of the cluster's authority, PEM.
    pub fn authority_certificate(&self) -> &str {
        self.authority.certificate()
    }

    /// The token by which nodes join.
    pub fn token(&self) -> String {
        format!("{TOKEN_ID}.{TOKEN_SECRET}")
    }

    fn let_nodes_join(&self) -> Result<()> {
        self.kubectl.apply("joining", JOINING)?;
        let secret = format!(
            "apiVersion: v1\nkind: Secret\ntype: bootstrap.kubernetes.io/token\n\
             metadata: {{name: bootstrap-token-{TOKEN_ID}, namespace: kube-system}}\n\
             stringData:\n  token-id: {TOKEN_ID}\n  token-secret: \"{TOKEN_SECRET}\"\n  usage-bootstrap-authentication: \"true\"\n"
        );
        self.kubectl.apply("token", &secret)
    }

    /// Pods are refused before their service account is there.
    fn wait_for_controllers(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE_FOR_CONTROLLERS;
        while let Err(error) = self.kubectl.get(&["serviceaccount", "default"]) {
            if Instant::now() > until {
                return Err(error.context("the controller manager makes no service account"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Apiserver {
    fn start(
        folder: &Scratch,
        authority: &Authority,
        tokens: &TokenKey,
        nodes: Nodes,
    ) -> Result<Self> {
        let etcd = Etcd::start(folder)?;
        let port = lease_port()?;
        let mut command = Command::new(program(APISERVER)?);
        command.arg(format!("--etcd-servers={}", etcd.url()));
        command.arg(format!("--secure-port={}", port.port()));
        command.args(OPTIONS);
        option(
            &mut command,
            "audit-policy-file",
            &folder.write("audit.yaml", nodes.audit_policy())?,
        );
        option(&mut command, "audit-log-path", &folder.join(AUDIT_LOG));
        let authority_file = authority.own().certificate;
        option(&mut command, "client-ca-file", &authority_file);
        let names = ["localhost", "127.0.0.1", HOST_FOR_GUEST, "10.96.0.1"];
        let own = authority.issue("apiserver", "kube-apiserver", None, &names)?;
        option(&mut command, "tls-cert-file", &own.certificate);
        option(&mut command, "tls-private-key-file", &own.key);
        let to_kubelets =
            authority.issue("to-kubelets", "apiserver", Some("system:masters"), &[])?;
        let Credentials { certificate, key } = to_kubelets;
        option(&mut command, "kubelet-client-certificate", &certificate);
        option(&mut command, "kubelet-client-key", &key);
        option(&mut command, "service-account-key-file", &tokens.public);
        option(
            &mut command,
            "service-account-signing-key-file",
            &tokens.private,
        );
        let arguments = command.get_args().map(OsStr::to_owned).collect();
        Ok(Self {
            process: spawn(folder, APISERVER, command)?,
            arguments,
            starts: 1,
            folder: folder.clone(),
            port,
            etcd,
        })
    }

    fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.starts += 1;
        let mut command = Command::new(program(APISERVER)?);
        command.args(&self.arguments);
        let log = format!("{APISERVER}-{}", self.starts);
        self.process = spawn(&self.folder, &log, command)?;
        Ok(())
    }

    fn address(&self) -> String {
        format!("https://{}:{}", Ipv4Addr::LOCALHOST, self.port.port())
    }

    fn wait_until_ready(&self, kubectl: &Kubectl) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = kubectl.run(&["get", "--raw", "/readyz"]) {
            let processes = [
                ("etcd", self.etcd.ended()),
                (APISERVER, self.process.ended()),
            ];
            for (name, ended) in processes {
                if let Some(ended) = ended {
                    bail!("{name} ended ({ended}): see {name}.log");
                }
            }
            if Instant::now() > until {
                return Err(error.context("the API server does not become ready"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// The log of requests, in the folder of the control plane.
const AUDIT_LOG: &str = "audit.log";

const APISERVER: &str = "kube-apiserver";
/// Guests reach the host's loopback, and nobody else does.
const OPTIONS: [&str; 11] = [
    "--bind-address=127.0.0.1",
    // No pod reaches 10.96.0.1 here: there is no kube-proxy, and the server is on loopback.
    "--advertise-address=127.0.0.1",
    "--endpoint-reconciler-type=none",
    "--service-cluster-ip-range=10.96.0.0/24",
    "--authorization-mode=Node,RBAC",
    "--enable-admission-plugins=NodeRestriction",
    "--enable-bootstrap-token-auth=true",
    "--kubelet-preferred-address-types=InternalIP",
    "--service-account-issuer=https://kubernetes.default.svc",
    "--allow-privileged=true",
    "--profiling=false",
];

fn controller_manager(
    folder: &Scratch,
    authority: &Authority,
    tokens: &TokenKey,
    (kubeconfig, nodes): (&Path, Nodes),
) -> Result<OwnedProcess> {
    let mut command = Command::new(program("kube-controller-manager")?);
    command.arg(format!("--controllers={}", nodes.controllers()));
    // It serves nothing here, so that several may run on one host.
    command.args(["--secure-port=0", "--leader-elect=false"]);
    option(&mut command, "kubeconfig", kubeconfig);
    let key = "service-account-private-key-file";
    option(&mut command, key, &tokens.private);
    let Credentials { certificate, key } = authority.own();
    option(&mut command, "root-ca-file", &certificate);
    option(&mut command, "cluster-signing-cert-file", &certificate);
    option(&mut command, "cluster-signing-key-file", &key);
    spawn(folder, "kube-controller-manager", command)
}

fn scheduler(folder: &Scratch, authority: &Authority, server: &str) -> Result<OwnedProcess> {
    let name = "system:kube-scheduler";
    let own = authority.issue("scheduler", name, None, &[])?;
    let kubeconfig = authority.kubeconfig("scheduler", server, &own)?;
    let mut command = Command::new(program("kube-scheduler")?);
    command.args(["--secure-port=0", "--leader-elect=false"]);
    option(&mut command, "kubeconfig", &kubeconfig);
    spawn(folder, "kube-scheduler", command)
}

fn option(command: &mut Command, name: &str, file: &Path) {
    command.arg(format!("--{name}={}", file.display()));
}
