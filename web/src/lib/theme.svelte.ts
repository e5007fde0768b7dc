// Light, dark, or as the system has it.
export type Theme = 'auto' | 'light' | 'dark'
const system = matchMedia('(prefers-color-scheme: dark)')

class Look {
  chosen = $state<Theme>((localStorage.getItem('theme') as Theme | null) ?? 'auto')
  private dark = $state(system.matches)

  constructor() {
    system.addEventListener('change', () => (this.dark = system.matches))
  }

  get isDark(): boolean {
    return this.chosen === 'auto' ? this.dark : this.chosen === 'dark'
  }

  next(): void {
    this.chosen = this.chosen === 'auto' ? 'light' : this.chosen === 'light' ? 'dark' : 'auto'
    localStorage.setItem('theme', this.chosen)
  }
}

export const look = new Look()
