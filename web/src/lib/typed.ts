// What people type.

const SUFFIXES: Record<string, number> = { '': 1, k: 1e3, m: 1e6, b: 1e9 }

/** `2048`, `20,000,000`, `20M`, `$1,500.50`; null where it is no number. A comma only parts thousands. */
export function typedNumber(text: string): number | null {
  const found = /^\$?\s*(\d+|\d{1,3}(?:,\d{3})+)(\.\d+)?\s*([kmb]?)$/i.exec(text.trim())
  if (!found) return null
  const value = Number(found[1]!.replaceAll(',', '') + (found[2] ?? ''))
  return found[3] ? Math.round(value * SUFFIXES[found[3].toLowerCase()]!) : value
}

/** Into the clipboard. A page that came over HTTP from another machine has none but the one of old. */
export async function copied(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text)
    return true
  }
  const field = document.createElement('textarea')
  field.value = text
  field.setAttribute('aria-hidden', 'true')
  const before = document.activeElement as HTMLElement | null
  const place = document.querySelector('dialog[open]') ?? document.body // elsewhere nothing can be selected while it is open
  place.append(field)
  field.select()
  const done = document.execCommand('copy')
  field.remove()
  before?.focus()
  return done
}
