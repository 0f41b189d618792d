// Creates elements without markup in their texts, because peers choose the names.

type Child = Node | string | null;
type Attributes = Record<string, string | number | boolean | ((event: Event) => void)>;

const SVG = "http://www.w3.org/2000/svg";

/**
 * The characters that the page replaces by a visible one, so that no name can look like another
 * name. They are invisible or blank, or change the direction of the following text.
 */
const UNSEEN =
  /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\u00a0\u034f\u115f\u1160\u17b4\u17b5\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\ufe00-\ufe0f\uffa0]/gu;
/** More than two combining marks in a row, which would cover the lines above and below. */
const HEAPED = /(\p{M}{2})\p{M}+/gu;

export function clean(text: string): string {
  return text.replace(UNSEEN, "\ufffd").replace(HEAPED, "$1\ufffd");
}

function fill(node: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false) node.setAttribute(name, clean(String(value)));
  }
  for (const child of children) if (child !== null) node.append(typeof child === "string" ? clean(child) : child);
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  fill(node, attributes, children);
  return node;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, tag);
  fill(node, attributes, children);
  return node;
}

/** Sets a text only if it differs, so that the browser does not lay it out again. */
export function say(node: Element, text: string): void {
  const shown = clean(text);
  if (node.textContent !== shown) node.textContent = shown;
}
