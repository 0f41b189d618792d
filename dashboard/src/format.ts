// Formats figures for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Formats a number with at most five characters: 12,345 is 12.3k. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (value < 9.95) return Number.isInteger(value) ? String(value) : value.toFixed(1);
  if (value < 9_999.5) return whole.format(value);
  for (const [unit, size] of [["k", 1e3], ["M", 1e6], ["G", 1e9]] as const) {
    const scaled = value / size;
    if (scaled < 999.5) return `${scaled.toFixed(scaled < 99.95 ? 1 : 0)}${unit}`;
  }
  return value.toExponential(1);
}

const STEPS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function bytes(value: number): string {
  if (!Number.isFinite(value)) return "–";
  let step = 0;
  while (value >= 1023.5 && step < STEPS.length - 1) {
    value /= 1024;
    step += 1;
  }
  const digits = step === 0 || value >= 99.95 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${STEPS[step]}`;
}

export function perSecond(value: number): string {
  return Number.isFinite(value) ? `${bytes(value)}/s` : "–";
}

/** Formats a latency in microseconds. */
export function latency(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (value < 999.5) return `${value.toFixed(value > 0 && value < 9.95 ? 1 : 0)} µs`;
  if (value < 999_500) return `${(value / 1e3).toFixed(value < 9_950 ? 1 : 0)} ms`;
  return `${(value / 1e6).toFixed(1)} s`;
}

export function percent(value: number): string {
  return Number.isFinite(value) ? `${value.toFixed(0)} %` : "–";
}

export function duration(seconds: number): string {
  const days = Math.floor(seconds / 86_400);
  const hours = Math.floor((seconds % 86_400) / 3_600);
  const minutes = Math.floor((seconds % 3_600) / 60);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  if (minutes > 0) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds)} s`;
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

export function plural(count: number, one: string): string {
  return `${whole.format(count)} ${one}${count === 1 ? "" : "s"}`;
}

/** Shortens a name to its end, because NQNs differ at the end. */
export function tail(name: string, most: number): string {
  return name.length <= most ? name : `…${name.slice(1 - most)}`;
}
