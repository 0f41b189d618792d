//! `farblock ctl group upgrade`: restarts one member of a group after the other.
//!
//! When the upgrade starts, etcd records the incarnation of each member: a number that grows with
//! each restart. So etcd shows which members have restarted, and the user can continue an
//! interrupted upgrade through any member.
//!
//! ```text
//!   drain --> leads nothing --> hosts have other paths --> restart --> ready
//!                                          next member <-- resume <-- hosts are back
//! ```

use super::args::UpgradeArgs;
use super::{ask, done};
use crate::error::{Failure, Result};
use crate::output;
use farblock_admin_api::GroupOrder;
use farblock_admin_client::Client;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The path of the group in the management interface.
pub(super) const GROUP: &str = "/v1/group";
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The interval at which the command says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// The state of the group, as reported by the member that answers this command.
#[derive(Deserialize, Debug)]
struct Seen {
    member: String,
    members: Vec<Member>,
    ana_groups: Vec<AnaGroup>,
    #[serde(default)]
    upgrade: Option<BTreeMap<String, Before>>,
}

#[derive(Deserialize, Debug)]
struct Member {
    name: String,
    alive: bool,
    duty: String,
    program: String,
    leads: Vec<u32>,
    incarnation: u64,
    hosts: Option<BTreeSet<String>>,
}

#[derive(Deserialize, Debug)]
struct AnaGroup {
    number: u32,
    leader: Option<String>,
    phase: String,
    victims: Vec<String>,
}

/// The state of a member at the start of the upgrade.
#[derive(Deserialize, Debug)]
struct Before {
    incarnation: u64,
    duty: String,
}

impl Seen {
    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    fn before(&self, name: &str) -> Option<&Before> {
        self.upgrade.as_ref()?.get(name)
    }

    /// Whether the member has restarted since the start of the upgrade.
    fn has_restarted(&self, name: &str) -> bool {
        let now = self.member(name).filter(|member| member.alive).map(|it| it.incarnation);
        now > self.before(name).map(|before| before.incarnation)
    }

    /// Whether the member has the same duty (to lead, drain or pause) as before the upgrade.
    fn has_its_duty(&self, name: &str) -> bool {
        let (now, before) = (self.member(name), self.before(name));
        now.zip(before).is_none_or(|(now, before)| now.duty == before.duty)
    }

    /// The next member to restart. First comes a member with which an interrupted command had
    /// begun. Then members that lead few ANA groups, so that leadership moves seldom. The member
    /// that answers this command is the last.
    fn next(&self) -> Option<String> {
        let upgrade = self.upgrade.iter().flat_map(BTreeMap::keys);
        let open = upgrade.filter(|name| !self.has_restarted(name) || !self.has_its_duty(name));
        let rank = |name: &&String| {
            let leads = self.member(name).map_or(0, |member| member.leads.len());
            (self.has_its_duty(name), **name == self.member, leads)
        };
        open.min_by_key(rank).cloned()
    }

    /// The reason why the group still needs the member as a leader; `None` if it does not.
    fn needs(&self, name: &str) -> Option<String> {
        let is_settled = |group: &&AnaGroup| {
            let leader = group.leader.as_deref();
            group.phase == "serving" && leader != Some(name) && group.victims.is_empty()
        };
        let group = self.ana_groups.iter().find(|group| !is_settled(group))?;
        Some(format!("no other member leads ANA group {} yet", group.number))
    }

    /// The hosts that are connected to members other than this one.
    fn elsewhere(&self, name: &str) -> BTreeSet<&str> {
        let others = self.members.iter().filter(|member| member.alive && member.name != name);
        others.flat_map(|member| &member.hosts).flatten().map(String::as_str).collect()
    }

    /// Returns a host whose only path leads to this member; `None` if there is none.
    fn stranded(&self, name: &str) -> Option<&str> {
        let elsewhere = self.elsewhere(name);
        let hosts = self.member(name).into_iter().flat_map(|member| &member.hosts).flatten();
        hosts.map(String::as_str).find(|host| !elsewhere.contains(host))
    }
}

struct Upgrade<'a> {
    client: &'a Client,
    args: &'a UpgradeArgs,
    began: Instant,
}

pub(super) fn run(client: &Client, args: &UpgradeArgs) -> Result<()> {
    let upgrade = Upgrade { client, args, began: Instant::now() };
    if args.cancel {
        return upgrade.cancel();
    }
    upgrade.order(&GroupOrder::BeginUpgrade)?;
    let seen = upgrade.until("etcd has recorded the upgrade", |seen| {
        (seen.upgrade.is_none()).then(|| "etcd does not list the upgrade yet".to_owned())
    })?;
    let all = seen.upgrade.as_ref().map_or(0, BTreeMap::len);
    let left = seen.upgrade.iter().flatten().filter(|(name, _)| !seen.has_restarted(name)).count();
    upgrade.say(&format!("rolling upgrade: {left} of {all} members to restart"))?;
    let mut seen = seen;
    while let Some(name) = seen.next() {
        let done = upgrade.one(&name, seen);
        seen = done.map_err(|failure| stopped(&name, &failure))?;
    }
    upgrade.order(&GroupOrder::EndUpgrade)?;
    upgrade.say("all members have restarted")
}

fn stopped(name: &str, failure: &Failure) -> Failure {
    Failure::run(format_args!(
        "the upgrade stopped at {name}: {}; run farblock ctl group upgrade again to continue, or \
         with --cancel to end it",
        failure.sentence()
    ))
}

impl Upgrade<'_> {
    fn say(&self, sentence: &str) -> Result<()> {
        let seconds = self.began.elapsed().as_secs();
        output::print(&format!("{:2}:{:02}  {sentence}\n", seconds / 60, seconds % 60))
    }

    fn order(&self, order: &GroupOrder) -> Result<()> {
        ask(self.client, "POST", GROUP, None, Some(&json!(order))).map(drop)
    }

    /// Sends an order to the group. Repeats it while the member that answers restarts or cannot
    /// reach etcd.
    fn order_until_done(&self, order: &GroupOrder) -> Result<()> {
        let begin = Instant::now();
        loop {
            match self.order(order) {
                Err(_) if begin.elapsed() < self.args.wait => std::thread::sleep(LOOK_EVERY),
                done => return done,
            }
        }
    }

    fn look(&self) -> Result<Seen> {
        let answer = self.client.ask("GET", GROUP, None, None).map_err(Failure::run)?;
        serde_json::from_str(&done(answer)?.body).map_err(|error| {
            Failure::run(format_args!("the target has a different version of farblock: {error}"))
        })
    }

    /// Waits until `missing` returns `None`. Until then, `missing` returns the unmet condition as a
    /// sentence. The member that answers may restart meanwhile.
    fn until(&self, what: &str, missing: impl Fn(&Seen) -> Option<String>) -> Result<Seen> {
        let begin = Instant::now();
        let mut said = Instant::now();
        loop {
            let reason = match self.look() {
                Ok(seen) => match missing(&seen) {
                    None => return Ok(seen),
                    Some(reason) => reason,
                },
                Err(failure) => failure.sentence().to_owned(),
            };
            if begin.elapsed() >= self.args.wait {
                let seconds = self.args.wait.as_secs();
                return Err(Failure::run(format_args!("{reason} after {seconds} s")));
            }
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                self.say(&format!("waiting until {what}: {reason}"))?;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Drains, restarts and resumes one member.
    fn one(&self, name: &str, seen: Seen) -> Result<Seen> {
        let member = || name.to_owned();
        let mut hosts = BTreeSet::new();
        let mut seen = seen;
        if !seen.has_restarted(name) {
            self.say(&format!("{name}: draining"))?;
            self.order_until_done(&GroupOrder::Drain { member: member() })?;
            seen = self.until("the other members lead", |seen| seen.needs(name))?;
            if !self.args.force {
                seen = self.until("all hosts have other paths", |seen| {
                    let host = seen.stranded(name)?;
                    Some(format!("host {host} is connected to no other member"))
                })?;
            }
            let now = seen.member(name);
            hosts.extend(now.and_then(|it| it.hosts.clone()).into_iter().flatten());
            self.say(&format!("{name}: leads nothing; {} have other paths", counted(hosts.len())))?;
            self.order_until_done(&GroupOrder::Restart { member: member() })?;
            self.say(&format!("{name}: ordered to end; its supervisor must start it again"))?;
        }
        seen = self.until(&format!("{name} is ready"), |seen| {
            let is_ready = seen.member(name).is_some_and(|it| it.hosts.is_some());
            match (seen.has_restarted(name), is_ready) {
                (true, true) => None,
                (true, false) => Some(format!("{name} has joined, but is not ready for hosts")),
                (false, _) => Some(format!(
                    "{name} has not started again (without systemd or another supervisor, start it \
                     yourself)"
                )),
            }
        })?;
        let program = seen.member(name).map(|it| it.program.clone()).unwrap_or_default();
        self.say(&format!("{name}: ready again, version {program}"))?;
        if !self.args.force && !hosts.is_empty() {
            self.until(&format!("the hosts have returned to {name}"), |seen| {
                let back = seen.member(name)?.hosts.as_ref()?;
                let others = seen.elsewhere(name);
                // Do not wait for a host that is connected to no member any more.
                let is_missing =
                    |host: &&String| !back.contains(*host) && others.contains(host.as_str());
                let host = hosts.iter().find(is_missing)?;
                Some(format!("host {host} has not returned to {name}"))
            })?;
        }
        self.restore(name, &seen)?;
        self.until(&format!("{name} has its tasks again"), |seen| {
            (!seen.has_its_duty(name)).then(|| format!("{name} does not have its tasks yet"))
        })
    }

    /// Gives the member back the duty that it had before the upgrade.
    fn restore(&self, name: &str, seen: &Seen) -> Result<()> {
        let member = || name.to_owned();
        let order = match seen.before(name).map(|before| before.duty.as_str()) {
            Some("drain") => GroupOrder::Drain { member: member() },
            Some("pause") => GroupOrder::Pause { member: member() },
            _ => GroupOrder::Resume { member: member() },
        };
        self.order_until_done(&order)?;
        self.say(&format!("{name}: done"))
    }

    fn cancel(&self) -> Result<()> {
        let seen = self.look()?;
        let Some(members) = &seen.upgrade else {
            return output::print("nothing to change\n");
        };
        for name in members.keys().filter(|name| !seen.has_its_duty(name)) {
            self.restore(name, &seen)?;
        }
        self.order(&GroupOrder::EndUpgrade)?;
        self.say("the rolling upgrade has ended")
    }
}

fn counted(hosts: usize) -> String {
    match hosts {
        1 => "1 host".to_owned(),
        count => format!("{count} hosts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(members: serde_json::Value, upgrade: serde_json::Value) -> Seen {
        let group = json!({
            "member": "b", "members": members, "upgrade": upgrade,
            "ana_groups": [{ "number": 1, "leader": "a", "phase": "serving", "victims": [] }],
        });
        serde_json::from_value(group).expect("the group is valid")
    }

    fn member(name: &str, incarnation: u64, duty: &str, hosts: &[&str]) -> serde_json::Value {
        json!({
            "name": name, "alive": true, "duty": duty, "program": "1", "incarnation": incarnation,
            "leads": if name == "a" { vec![1] } else { vec![] }, "hosts": hosts,
        })
    }

    fn before() -> serde_json::Value {
        json!({
            "a": { "incarnation": 1, "duty": "serve" },
            "b": { "incarnation": 1, "duty": "serve" },
            "c": { "incarnation": 1, "duty": "pause" },
        })
    }

    #[test]
    fn an_unfinished_member_is_upgraded_first_and_the_answering_member_last() {
        let at = |a: (u64, &str), b: (u64, &str), c: (u64, &str)| {
            let all = [("a", a), ("b", b), ("c", c)];
            let all = all.map(|(name, (incarnation, duty))| member(name, incarnation, duty, &[]));
            seen(json!(all), before()).next()
        };
        let serve = (1, "serve");
        assert_eq!(
            at(serve, serve, (1, "pause")).as_deref(),
            Some("c"),
            "the member with the fewest ANA groups is next"
        );
        assert_eq!(at(serve, serve, (2, "pause")).as_deref(), Some("a"));
        assert_eq!(
            at((1, "drain"), serve, (1, "pause")).as_deref(),
            Some("a"),
            "a drained member is next"
        );
        assert_eq!(
            at((2, "drain"), serve, (2, "pause")).as_deref(),
            Some("a"),
            "a restarted member that still drains is next"
        );
        assert_eq!(at((2, "serve"), serve, (2, "pause")).as_deref(), Some("b"));
        assert_eq!(at((2, "serve"), (2, "serve"), (2, "pause")), None);
    }

    #[test]
    fn the_host_and_the_ana_group_that_still_need_a_member_are_named() {
        let members = json!([
            member("a", 1, "serve", &["one", "two"]),
            member("b", 1, "serve", &["one"]),
            member("c", 1, "pause", &[]),
        ]);
        let seen = seen(members, before());
        assert_eq!(seen.stranded("a"), Some("two"));
        assert_eq!(seen.stranded("b"), None);
        assert_eq!(seen.needs("a").as_deref(), Some("no other member leads ANA group 1 yet"));
        assert_eq!(seen.needs("b"), None);
    }
}
