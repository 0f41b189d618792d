// Input fields for limits per second.

import { el } from "./dom";
import { NAMES } from "./limits";
import type { Limit, Limits } from "./types";

const MIB = 1 << 20;

/** The label of each field, and the factor from the field's unit to the document's unit. */
const FIELDS: Record<Limit, [label: string, unit: number]> = {
  iops: ["I/Os", 1],
  read_iops: ["Reads", 1],
  write_iops: ["Writes", 1],
  bytes: ["MiB", MIB],
  read_bytes: ["MiB read", MIB],
  write_bytes: ["MiB written", MIB],
};
const MOST_WEIGHT = 1000;

interface Fields {
  node: HTMLElement;
  /** Whether all fields have numbers. Focuses a field without one. */
  valid: () => boolean;
  /** Returns the changed limits; `null` removes a limit. */
  patch: () => Record<string, number | null>;
  /** Describes the new limits in words. */
  words: () => string;
}

/** Makes the fields. An empty field means no limit. */
export function limitFields(was: Limits, hasWeight: boolean): Fields {
  const inputs = new Map<Limit | "weight", HTMLInputElement>();
  const labels = (Object.keys(FIELDS) as Limit[]).map((name) => {
    const [label, unit] = FIELDS[name];
    const value = was[name];
    const input = el("input", { type: "number", min: 1 / unit, step: unit === 1 ? 1 : "any", value: value === undefined ? "" : value / unit });
    inputs.set(name, input);
    return el("label", {}, `${label} per second `, input);
  });
  if (hasWeight) {
    const input = el("input", { type: "number", min: 1, max: MOST_WEIGHT, step: 1, value: was.weight ?? "" });
    inputs.set("weight", input);
    labels.push(el("label", {}, "Weight on a full core (100) ", input));
  }
  const wanted = (name: Limit | "weight"): number | null => {
    const input = inputs.get(name);
    if (!input || input.value === "") return null;
    return Math.round(input.valueAsNumber * (name === "weight" ? 1 : FIELDS[name][1]));
  };
  return {
    node: el("div", { class: "limits" }, ...labels),
    valid: () => [...inputs.values()].every((input) => input.reportValidity()),
    patch: () => {
      const changed = [...inputs.keys()].filter((name) => wanted(name) !== (was[name] ?? null));
      return Object.fromEntries(changed.map((name) => [name, wanted(name)]));
    },
    words: () => {
      const said = [...inputs.keys()].flatMap((name) => {
        const value = wanted(name);
        if (value === null) return [];
        return [name === "weight" ? `weight ${value}` : NAMES[name](value)];
      });
      return said.length === 0 ? "nothing (no limits)" : said.join(", ");
    },
  };
}
