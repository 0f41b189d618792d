//! Runs `farblock ctl group`: shows the group of targets to which a target belongs, or sends it an
//! order, such as to move a leader.

use super::args::{GroupArgs, GroupCommand};
use super::upgrade::{self, GROUP};
use super::{ask, say};
use crate::error::Result;
use crate::output;
use farblock_admin_api::GroupOrder;
use farblock_admin_client::Client;
use serde_json::{Value, json};

/// Shows the group, or sends it an order.
pub(super) fn run(client: &Client, args: &GroupArgs) -> Result<()> {
    if let Some(GroupCommand::Upgrade(args)) = &args.order {
        return upgrade::run(client, args);
    }
    if let Some(command) = &args.order {
        let order = json!(order(command));
        return say(&ask(client, "POST", GROUP, None, Some(&order))?, "nothing to change\n");
    }
    let group = ask(client, "GET", GROUP, None, None)?;
    match args.json {
        true => output::print_json(&group.json()),
        false => output::print(&text(&group.json())),
    }
}

fn order(command: &GroupCommand) -> GroupOrder {
    match command {
        GroupCommand::Move { ana_group, member } => {
            GroupOrder::Move { ana_group: *ana_group, member: member.clone() }
        }
        GroupCommand::Unpin { ana_group } => GroupOrder::Unpin { ana_group: *ana_group },
        GroupCommand::Drain { member } => GroupOrder::Drain { member: member.clone() },
        GroupCommand::Pause { member } => GroupOrder::Pause { member: member.clone() },
        GroupCommand::Resume { member } => GroupOrder::Resume { member: member.clone() },
        GroupCommand::Forget { member } => GroupOrder::Forget { member: member.clone() },
        GroupCommand::Upgrade(_) => GroupOrder::BeginUpgrade,
    }
}

/// Returns the tables of the target's group, or nothing if it has none.
pub(super) fn shown(client: &Client) -> String {
    let answer = client.ask("GET", GROUP, None, None).ok();
    let group = answer.filter(|answer| answer.is_success()).map(|answer| answer.json());
    group.as_ref().map(text).unwrap_or_default()
}

/// Formats the group as lines: one for the group itself, then one for each member, ANA group and
/// recent event.
fn text(group: &Value) -> String {
    let said = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let list = |value: &Value| {
        let all: Vec<_> = value.as_array().into_iter().flatten().map(said).collect();
        if all.is_empty() { "-".to_owned() } else { all.join(",") }
    };
    let mut text = format!("group {}, member {}", said(&group["group"]), said(&group["member"]));
    match group["store"]["reachable"] == true {
        true => text.push('\n'),
        false => text.push_str(&format!(
            ": etcd does not answer, so changes wait ({})\n",
            said(&group["store"]["trouble"])
        )),
    }
    for member in group["members"].as_array().into_iter().flatten() {
        let alive = if member["alive"] == true { "alive" } else { "lost" };
        text.push_str(&format!(
            "  member {}: {alive}, {}, leads {}, {}, at {}, version {}\n",
            said(&member["name"]),
            said(&member["duty"]),
            list(&member["leads"]),
            hosts(&member["hosts"]),
            list(&member["addresses"]),
            said(&member["program"]),
        ));
    }
    if group["upgrade"].is_object() {
        text.push_str(
            "  a rolling upgrade has not ended: farblock ctl group upgrade continues it\n",
        );
    }
    for one in group["ana_groups"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "  ANA group {}: {} {}, epoch {}, last change: {}\n",
            said(&one["number"]),
            said(&one["phase"]),
            said(&one["leader"]),
            said(&one["epoch"]),
            said(&one["reason"]),
        ));
        for (member, failed) in one["failed"].as_object().into_iter().flatten() {
            text.push_str(&format!("    {member} {}\n", said(&failed["problem"])));
        }
    }
    for event in group["history"].as_array().into_iter().flatten().rev().take(5) {
        text.push_str(&format!("  {}\n", said(&event["text"])));
    }
    text
}

/// Describes how many hosts are connected to a member.
fn hosts(hosts: &Value) -> String {
    match hosts.as_array().map(Vec::len) {
        None => "not ready for hosts".to_owned(),
        Some(1) => "1 host".to_owned(),
        Some(count) => format!("{count} hosts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_shown_with_its_leaders_and_an_unreachable_store() {
        let group = json!({
            "group": "gold", "member": "a",
            "store": { "reachable": false, "trouble": "connection refused" },
            "members": [{
                "name": "a", "alive": true, "duty": "serve", "leads": [1, 2],
                "addresses": ["192.0.2.1:4420"], "hosts": ["nqn.2026-11.a:b"], "program": "0.1.0",
            }],
            "ana_groups": [{
                "number": 1, "phase": "serving", "leader": "a", "epoch": 3, "reason": "lost",
                "failed": { "b": { "problem": "cannot open its disk: no such file" } },
            }],
        });
        let text = text(&group);
        for part in [
            "group gold, member a: etcd does not answer, so changes wait (connection refused)\n",
            "  member a: alive, serve, leads 1,2, 1 host, at 192.0.2.1:4420, version 0.1.0\n",
            "  ANA group 1: serving a, epoch 3, last change: lost\n",
            "    b cannot open its disk: no such file\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
