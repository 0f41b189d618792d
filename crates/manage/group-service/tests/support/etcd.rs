//! Real etcd processes on the loopback interface.

use super::{port, wait_for};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

struct Node {
    client: u16,
    peer: u16,
    child: Option<Child>,
}

pub(crate) struct Etcd {
    nodes: Vec<Node>,
    folder: TempDir,
}

impl Etcd {
    /// Starts a cluster of `count` processes.
    pub(crate) fn start(count: usize) -> Self {
        let node = |_| Node { client: port(), peer: port(), child: None };
        let nodes = (0..count).map(node).collect();
        let mut etcd = Self { nodes, folder: tempfile::tempdir().expect("a folder") };
        (0..count).for_each(|number| etcd.revive(number));
        for node in &etcd.nodes {
            wait_for("etcd", || TcpStream::connect(("127.0.0.1", node.client)).is_ok());
        }
        etcd
    }

    pub(crate) fn port(&self, number: usize) -> u16 {
        self.nodes[number].client
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.client)).collect()
    }

    pub(crate) fn revive(&mut self, number: usize) {
        let all = self.nodes.iter().enumerate();
        let cluster: Vec<_> =
            all.map(|(number, node)| format!("n{number}=http://127.0.0.1:{}", node.peer)).collect();
        let node = &mut self.nodes[number];
        let (client, peer) = (
            format!("http://127.0.0.1:{}", node.client),
            format!("http://127.0.0.1:{}", node.peer),
        );
        let data = self.folder.path().join(format!("n{number}"));
        let child = Command::new("etcd")
            .args(["--name", &format!("n{number}"), "--log-level", "error"])
            .arg("--data-dir")
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster.join(","), "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        node.child = Some(child.expect("etcd starts; interop/packages.sh installs it"));
    }

    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.nodes[number].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|number| self.kill(number));
    }
}
