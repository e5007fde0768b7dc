// What holds memory, in the order it is drawn: first what stays, last what comes and goes.
const ORDER = ['weights', 'adapters', 'optimizer', 'gradients', 'activations', 'logits_and_loss', 'temporaries', 'allocator']
const place = (name: string): number => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length)

export interface Part { name: string; value: number }

const above = (of: Record<string, number> | null | undefined, least: number): Part[] =>
  Object.entries(of ?? {}).filter(([, value]) => value > least).map(([name, value]) => ({ name, value }))
const LEAST_S = 1e-6 // below, a part is what rounding leaves

/** Of memory. */
export const stacked = (of: Record<string, number> | null): Part[] => above(of, 0).sort((a, b) => place(a.name) - place(b.name))
/** Of time: the longest first. */
export const longest = (of: Record<string, number> | null | undefined): Part[] => above(of, LEAST_S).sort((a, b) => b.value - a.value)
